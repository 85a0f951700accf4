{{/* What all pods of a release have in common. */}}

{{/* {root, component, token: whether it talks to the API server, worker: an entry of workers} */}}
{{- define "stitch.pod" -}}
serviceAccountName: {{ .root.Release.Name }}-{{ .component }}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- $worker := .worker | default dict }}
{{- with merge (dict) ($worker.nodeSelector | default dict) .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat ($worker.tolerations | default list) .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    {{- with $worker.seccompProfile }}
    type: Localhost
    localhostProfile: {{ . | quote }}
    {{- else }}
    type: RuntimeDefault
    {{- end }}
{{- end }}

{{- define "stitch.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{/* {root, component, worker: its name} and what changes the pods when it changes */}}
{{- define "stitch.podMetadata" -}}
labels:
  {{- include "stitch.labels" . | nindent 2 }}
  {{- with .worker }}
  stitchcore.io/worker: {{ . | quote }}
  {{- end }}
  {{- if has .component (list "webhook" "gateway" "reconciler" "store") }}
  stitchcore.io/metrics: "true"
  {{- end }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if or .checksum .root.Values.podAnnotations }}
annotations:
  {{- with .checksum }}
  stitchcore.io/settings: {{ . | sha256sum | trunc 16 | quote }}
  {{- end }}
  {{- with .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "stitch.brokerEnv" -}}
- name: STITCH_BROKER
  valueFrom:
    secretKeyRef:
      {{- if .Values.broker.bundled.enabled }}
      name: {{ include "stitch.secret.broker" . }}
      key: url
      {{- else }}
      name: {{ .Values.broker.existingSecret.name }}
      key: {{ .Values.broker.existingSecret.key }}
      {{- end }}
{{- end }}

{{- define "stitch.leasesEnv" -}}
{{- with .Values.broker.leases }}
{{- if .name }}
- name: STITCH_LEASES
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- end }}

{{/* HOME: a root that is read-only has no home that can be written. */}}
{{- define "stitch.env" -}}
- name: HOME
  value: /tmp
{{- end }}

{{- define "stitch.storeEnv" -}}
{{- if not .Values.store.url }}
- name: STITCH_STORE_CA
  value: /etc/stitch/store/ca.pem
- name: STITCH_STORE_TOKEN_FILE
  value: /etc/stitch/store/token
{{- end }}
{{- with .Values.store.env }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- define "stitch.storeEnvFrom" -}}
{{- with .Values.store.existingSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}

{{/* How a client of the release's own store proves who it is, and knows whom it talks to. */}}
{{- define "stitch.storeMount" -}}
{{- if not .Values.store.url }}
- {name: store-access, mountPath: /etc/stitch/store, readOnly: true}
{{- end }}
{{- end }}

{{- define "stitch.storeVolume" -}}
{{- if not .Values.store.url }}
- name: store-access
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken:
          path: token
          audience: store.stitchcore.io
          expirationSeconds: 3600
      - configMap:
          name: {{ .Release.Name }}-trust
          items:
            - {key: ca.pem, path: ca.pem}
{{- end }}
{{- end }}

{{/* {seconds}: passes while the file was touched so lately. One that is not there yet passes where
     `missing` says so: a broker that is down must not restart what waits for it. */}}
{{- define "stitch.heartbeat" -}}
exec:
  command:
    - python
    - -c
    - |
      import os, sys, time
      try:
          sys.exit(time.time() - os.stat("/tmp/heartbeat").st_mtime > {{ .seconds }})
      except FileNotFoundError:
          sys.exit({{ .missing | ternary 0 1 }})
timeoutSeconds: 5
{{- end }}

{{- define "stitch.spread" -}}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "stitch.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}

{{- /* GPUs of a container's resources; a MIG slice is its sevenths. Nothing where there are none. */}}
{{- define "stitch.gpusOf" -}}
{{- $limits := .limits | default dict }}
{{- $gpus := float64 (get $limits "nvidia.com/gpu" | default 0 | toString) }}
{{- range $name, $count := $limits }}
{{- if regexMatch "^nvidia\\.com/mig-[0-9]+g\\." $name }}
{{- $slices := regexReplaceAll "^nvidia\\.com/mig-([0-9]+)g\\..*$" $name "${1}" }}
{{- $gpus = addf $gpus (divf (mulf (float64 $slices) (float64 (toString $count))) 7) }}
{{- end }}
{{- end }}
{{- if $gpus }}{{ printf "%.4g" $gpus }}{{ end }}
{{- end }}

{{/* A node is emptied one pod of a component at a time. */}}
{{- define "stitch.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .root.Release.Name }}-{{ .component }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels: {{- include "stitch.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  # a node can be emptied also where nothing is healthy
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "stitch.selector" . | nindent 6 }}
{{- end }}
