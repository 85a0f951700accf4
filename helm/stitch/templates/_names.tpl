{{/* Names, labels, images, and what follows from several values. */}}

{{- define "stitch.labels" -}}
app.kubernetes.io/name: stitch
app.kubernetes.io/part-of: stitchcore
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service | quote }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "stitch.selector" -}}
app.kubernetes.io/name: stitch
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .worker }}
stitchcore.io/worker: {{ . | quote }}
{{- end }}
{{- end }}

{{/* {root, image: {repository, tag, digest}, tag: of the release where the image names none}.
     A registry for all takes the place of the first part of the repository. */}}
{{- define "stitch.image" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.global.imageRegistry -}}
{{- $parts := splitList "/" $repository -}}
{{- $first := first $parts -}}
{{- if and (gt (len $parts) 1) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) -}}
{{- $repository = join "/" (rest $parts) -}}
{{- end -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository -}}
{{- end -}}
{{- $repository }}:{{ default .tag .image.tag }}
{{- with .image.digest }}@{{ . }}{{ end -}}
{{- end }}

{{- define "stitch.image.operator" -}}
{{ include "stitch.image" (dict "root" . "image" .Values.images.operator "tag" .Chart.AppVersion) }}
{{- end }}

{{- define "stitch.image.runtime" -}}
{{ include "stitch.image" (dict "root" . "image" .Values.images.runtime "tag" .Chart.AppVersion) }}
{{- end }}

{{- define "stitch.image.redis" -}}
{{ include "stitch.image" (dict "root" . "image" .Values.images.redis "tag" "") }}
{{- end }}

{{/* {root, worker}: what an entry says of its image stands before what all workers have. */}}
{{- define "stitch.image.worker" -}}
{{- $own := .worker.image | default dict -}}
{{- $image := merge (dict) $own .root.Values.images.worker -}}
{{- $tag := printf "%s-tf%s" .root.Chart.AppVersion .worker.tensorflow -}}
{{ include "stitch.image" (dict "root" .root "image" $image "tag" $tag) }}
{{- end }}

{{/* Every image that this release pulls, itself or through a job, one a line. */}}
{{- define "stitch.images" -}}
{{- $found := list (include "stitch.image.operator" .) (include "stitch.image.runtime" .) -}}
{{- if .Values.broker.bundled.enabled -}}
{{- $found = append $found (include "stitch.image.redis" .) -}}
{{- end -}}
{{- range $worker := .Values.workers -}}
{{- $found = append $found (include "stitch.image.worker" (dict "root" $ "worker" $worker)) -}}
{{- end -}}
{{ $found | uniq | sortAlpha | join "\n" }}
{{- end }}

{{- define "stitch.secret.webhook" -}}
{{- $given := eq .Values.certificates.mode "existingSecret" | ternary .Values.certificates.existingSecret.webhook "" -}}
{{ default (printf "%s-webhook-tls" .Release.Name) $given }}
{{- end }}

{{- define "stitch.secret.gateway" -}}
{{- $given := eq .Values.certificates.mode "existingSecret" | ternary .Values.certificates.existingSecret.gateway "" -}}
{{ default (printf "%s-gateway-tls" .Release.Name) $given }}
{{- end }}

{{- define "stitch.secret.store" -}}
{{- $given := eq .Values.certificates.mode "existingSecret" | ternary .Values.certificates.existingSecret.store "" -}}
{{ default (printf "%s-store-tls" .Release.Name) $given }}
{{- end }}

{{- define "stitch.secret.signing" -}}
{{ default (printf "%s-signing" .Release.Name) .Values.signer.existingSecret }}
{{- end }}

{{- define "stitch.secret.kernelKey" -}}
{{ default (printf "%s-kernel-key" .Release.Name) .Values.kernelKey.existingSecret }}
{{- end }}

{{/* Of the bundled broker; "" where the broker is somebody else's. */}}
{{- define "stitch.secret.broker" -}}
{{- if .Values.broker.bundled.enabled }}{{ .Release.Name }}-broker{{ end -}}
{{- end }}

{{/* Secrets that the reconciler makes, and those of others that it reads; lines of YAML. */}}
{{- define "stitch.secrets.servers" -}}
- {{ include "stitch.secret.webhook" . }}
- {{ include "stitch.secret.gateway" . }}
- {{ include "stitch.secret.store" . }}
{{- end }}

{{- define "stitch.secrets.made" -}}
{{- if eq .Values.certificates.mode "self" }}
- {{ .Release.Name }}-ca
{{ include "stitch.secrets.servers" . }}
{{- end }}
{{- if not .Values.signer.existingSecret }}
- {{ include "stitch.secret.signing" . }}
{{- end }}
{{- if not .Values.kernelKey.existingSecret }}
- {{ include "stitch.secret.kernelKey" . }}
{{- end }}
{{- if .Values.broker.bundled.enabled }}
- {{ include "stitch.secret.broker" . }}
{{- end }}
{{- end }}

{{- define "stitch.secrets.read" -}}
{{- if ne .Values.certificates.mode "self" }}
{{ include "stitch.secrets.servers" . }}
{{- end }}
{{- if .Values.signer.existingSecret }}
- {{ .Values.signer.existingSecret }}
{{- end }}
{{- end }}

{{- define "stitch.store.claim" -}}
{{ default (printf "%s-store" .Release.Name) .Values.store.persistence.existingClaim }}
{{- end }}

{{- define "stitch.ledger.claim" -}}
{{ default (printf "%s-ledger" .Release.Name) .Values.ledger.persistence.existingClaim }}
{{- end }}

{{- define "stitch.store.url" -}}
{{ default (printf "stitch://%s-store.%s.svc:8444" .Release.Name .Release.Namespace) .Values.store.url }}
{{- end }}

{{- define "stitch.gateway.host" -}}
{{ .Release.Name }}-gateway.{{ .Release.Namespace }}.svc
{{- end }}

{{/* How pods that cannot resolve the cluster's names reach the gateway. */}}
{{- define "stitch.gateway.address" -}}
{{- $ip := .Values.gateway.clusterIP -}}
{{- if contains ":" $ip }}{{ $ip = printf "[%s]" $ip }}{{ end -}}
{{- if .Values.gateway.address }}{{ .Values.gateway.address }}{{ else if $ip }}{{ $ip }}:8443{{ end -}}
{{- end }}

{{- define "stitch.release" -}}
{{- $certificates := dict "mode" (eq .Values.certificates.mode "self" | ternary "self" "existing") -}}
{{- if eq .Values.certificates.mode "existingSecret" -}}
{{- $certificates = merge $certificates .Values.certificates.existingSecret -}}
{{- end -}}
{{- $secrets := dict
  "signing" .Values.signer.existingSecret
  "kernelKey" .Values.kernelKey.existingSecret
  "broker" (.Values.broker.bundled.enabled | ternary "" .Values.broker.existingSecret.name)
  "keep" .Values.store.persistence.keep -}}
{{- dict
  "name" .Release.Name
  "namespace" .Release.Namespace
  "version" .Chart.AppVersion
  "image" (include "stitch.image.runtime" .)
  "imagePullPolicy" .Values.images.runtime.pullPolicy
  "gatewayUrl" (printf "https://%s:8443" (include "stitch.gateway.host" .))
  "gatewayAddress" (include "stitch.gateway.address" .)
  "delivery" .Values.runtime.delivery
  "architectures" .Values.runtime.architectures
  "runtimeSize" .Values.runtime.size
  "cacheSize" .Values.runtime.cacheSize
  "cpu" .Values.runtime.cpu
  "memory" .Values.runtime.memory
  "ephemeralStorage" .Values.runtime.ephemeralStorage
  "certificates" $certificates
  "secrets" $secrets | toPrettyJson -}}
{{- end }}

{{/* What no schema can say: values that do not fit together. */}}
{{- define "stitch.check" -}}
{{- $broker := .Values.broker -}}
{{- if and $broker.bundled.enabled $broker.existingSecret.name -}}
{{- fail "broker.existingSecret.name is another broker's: set broker.bundled.enabled to false" -}}
{{- end -}}
{{- if not (or $broker.bundled.enabled $broker.existingSecret.name) -}}
{{- fail "no broker: enable broker.bundled, or name the Secret of one in broker.existingSecret.name" -}}
{{- end -}}
{{- if eq .Values.certificates.mode "existingSecret" -}}
{{- range $part := .Values.store.url | empty | ternary (list "webhook" "gateway" "store") (list "webhook" "gateway") -}}
{{- if not (index $.Values.certificates.existingSecret $part) -}}
{{- fail (printf "certificates.mode is existingSecret: name one in certificates.existingSecret.%s" $part) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.store.url .Values.store.persistence.existingClaim -}}
{{- fail "store.url and store.persistence.existingClaim are two stores: give one" -}}
{{- end -}}
{{- if and (gt (int .Values.gateway.replicas) 1) (not .Values.ledger.existingSecret.name) -}}
{{- fail "gateway.replicas: a file has one writer; name the Secret of a PostgreSQL database's URL in ledger.existingSecret.name" -}}
{{- end -}}
{{- if and (gt (int .Values.store.replicas) 1) (ne .Values.store.persistence.accessMode "ReadWriteMany") -}}
{{- fail "store.replicas: its volume must be one that several nodes mount: store.persistence.accessMode ReadWriteMany" -}}
{{- end -}}
{{- if and .Values.ledger.existingSecret.name .Values.ledger.persistence.existingClaim -}}
{{- fail "ledger.existingSecret.name and ledger.persistence.existingClaim are two ledgers: give one" -}}
{{- end -}}
{{- if .Values.images.pinned -}}
{{- range $image := splitList "\n" (include "stitch.images" .) -}}
{{- if not (contains "@sha256:" $image) -}}
{{- fail (printf "images.pinned: %s has no digest" $image) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if has .Values.test.namespace (list "kube-system" "kube-node-lease") -}}
{{- fail (printf "test.namespace: pods of %s are never injected" .Values.test.namespace) -}}
{{- end -}}
{{- range $name, $worker := .Values.workers -}}
{{- if gt (len (printf "%s-worker-%s" $.Release.Name $name)) 57 -}}
{{- fail (printf "workers.%s: with the release's name this is too long a name for a Deployment's pods" $name) -}}
{{- end -}}
{{- $keda := $worker.keda | default dict -}}
{{- if and $keda.enabled (not $worker.target) -}}
{{- if not $keda.triggers -}}
{{- fail (printf "workers.%s.target: needed by keda, the queue is named after it" $name) -}}
{{- end -}}
{{- if eq (include "stitch.keda.least" $worker) "0" -}}
{{- fail (printf "workers.%s.target: needed for keda.minReplicas: 0, or no task would wait for the first worker" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Names of a queue are the gateway's (stitchcore/service/queues.py). */}}
{{- define "stitch.queue" -}}
stitch.{{ .target }}.tf{{ .tensorflow }}
{{- end }}

{{- /* The fewest workers of an entry under KEDA: none, where the gateway knows its queue. */}}
{{- define "stitch.keda.least" -}}
{{- if hasKey .keda "minReplicas" }}{{ .keda.minReplicas }}{{ else if .target }}0{{ else }}1{{ end }}
{{- end }}
