"""Writes what of the charts follows from code: CRDs, the webhook's configuration, roles, the schema
of a policy among the values, the table of values. Nothing of it is typed a second time.

    python tools/chart.py            writes; run it after changing one of those
    python tools/chart.py --check    says what would change, and ends with 1 if anything would

The objects are made for a release of placeholder names, which become expressions of the template.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from stitch_operator import names
from stitch_operator.gateway import objects as gateway
from stitch_operator.reconciler import objects as reconciler
from stitch_operator.store import objects as store
from stitch_operator.webhook import objects as webhook
from stitch_operator.webhook.release import Release

ROOT = Path(__file__).resolve().parents[1]
CHART, CRDS = ROOT / "helm" / "stitch", ROOT / "helm" / "stitch-crds"
PAGES = ROOT / "docs" / "values.md", CHART / "README.md"
BEGIN, END = "<!-- values: made by tools/chart.py -->", "<!-- end of values -->"
Object = dict[str, Any]
NAMES = {
    "xreleasex": ".Release.Name",
    "xnamespacex": ".Release.Namespace",
    "xfailurepolicyx": ".Values.webhook.failurePolicy",
}
"""Placeholders and the expressions that take their place."""
PLACEHOLDER = re.compile("|".join(NAMES))
ALONE = re.compile(r"(?<=[:-] )\{\{ ([^{}]*) \}\}$", re.MULTILINE)
ABSENT = {"store": ".Values.store.url"}
"""Components that a release has not where this value is set."""
HEADING = "{{/* Made by tools/chart.py from the code: change that, and run it. */}}\n"
OWN_LABELS = {names.PART_OF, "app.kubernetes.io/instance"}
LABELS = '    {{- include "stitch.labels" (dict "root" . "component" "%s") | nindent 4 }}'


def placeholder_release() -> Release:
    """A release whose names are placeholders."""
    document = {
        "name": "xreleasex",
        "namespace": "xnamespacex",
        "version": "0",
        "image": "runtime",
        "gatewayUrl": "https://gateway:8443",
    }
    return msgspec.convert(document, Release)


def files() -> dict[Path, str]:
    """Every file that follows from code, and what it holds."""
    release = placeholder_release()
    made = CHART / "templates" / "generated"
    hooks = webhook.configuration(release, failure_policy="xfailurepolicyx")
    roles = {
        "webhook": webhook.roles(release),
        "gateway": gateway.roles(release),
        "reconciler": [*reconciler.roles(release), *webhook.trust_roles(release)],
        "store": store.roles(release),
    }
    found = {made / "webhook-configuration.yaml": template([hooks], "webhook")}
    for component, own in roles.items():
        objects = [*own, *bindings(own, f"xreleasex-{component}")]
        found[made / f"{component}-roles.yaml"] = template(objects, component)
    for definition in (webhook.policy_definition(), reconciler.job_definition()):
        name = definition["spec"]["names"]["singular"]
        found[CRDS / "templates" / f"{name}.yaml"] = dumped(definition)
    schema = CHART / "values.schema.json"
    found[schema] = with_policy(json.loads(schema.read_text(encoding="utf-8")))
    for page in PAGES:
        found[page] = with_table(page.read_text(encoding="utf-8"), json.loads(found[schema]))
    return found


def bindings(roles: list[Object], account: str) -> list[Object]:
    """Each role bound to the service account of its component; those that Kubernetes adds to its
    own roles are bound already."""
    return [
        {
            "apiVersion": role["apiVersion"],
            "kind": f"{role['kind']}Binding",
            "metadata": dict(role["metadata"]),
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": role["kind"],
                "name": role["metadata"]["name"],
            },
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "xnamespacex"}],
        }
        for role in roles
        if set(role["metadata"]["labels"]) == OWN_LABELS
    ]


def template(objects: list[Object], component: str) -> str:
    """The objects as a template: placeholders become expressions, labels those of the chart; none
    where the component is not there."""
    texts = []
    for one in objects:
        labels = one["metadata"]["labels"]
        more = {name: labels[name] for name in labels if name not in OWN_LABELS}
        metadata = {**one["metadata"], "labels": {"xlabelsx": None, **more}}
        text = dumped({**one, "metadata": metadata})
        text = by_values(text)
        text = PLACEHOLDER.sub(lambda found: f"{{{{ {NAMES[found[0]]} }}}}", text)
        # a scalar that is nothing but a name may look like a number
        text = ALONE.sub(r"{{ \1 | quote }}", text)
        texts.append(text.replace("    xlabelsx: null", LABELS % component))
    whole = HEADING + "---\n".join(texts)
    absent = ABSENT.get(component)
    return f"{{{{- if not {absent} }}}}\n{whole}{{{{- end }}}}\n" if absent else whole


class Plain(yaml.SafeDumper):
    """Without anchors: what code shares is written out each time."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def by_values(text: str) -> str:
    """Names of Secrets follow from values: whose they are, and whether they are made or read."""
    names = "".join(f"  - {name}\n" for name in placeholder_release().made_secrets)
    if names not in text:
        return text
    head, _, made = text.partition("- apiGroups:\n  - ''\n  resources:\n  - secrets\n")
    made = f"- apiGroups:\n  - ''\n  resources:\n  - secrets\n{made}"
    made = made.replace(f"\n{names}", " {{- . | nindent 2 }}\n")
    reading = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": 0}
    read = dumped([reading]).replace(" 0\n", " {{- . | nindent 2 }}\n")
    for which, rules in (("made", made), ("read", read)):
        head += (
            f'{{{{- with include "stitch.secrets.{which}" . | trim }}}}\n{rules}{{{{- end }}}}\n'
        )
    return head


def dumped(document: Any) -> str:
    text = yaml.dump(document, Dumper=Plain, sort_keys=False, width=1000)
    if "{{" in text:
        raise ValueError("a template would read it")
    return str(text)


# ---- values ------------------------------------------------------------------------------------
def with_policy(schema: Object) -> str:
    """The values' schema, with that of a StitchPolicy where a policy's spec stands."""
    definition = webhook.policy_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    policy = schema["properties"]["policy"]["properties"]
    policy["spec"] = {
        **closed(definition["properties"]["spec"]),
        "description": "its spec; see docs/kubernetes.md",
        "x-whole": True,
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def closed(schema: Mapping[str, Any]) -> Object:
    """A schema that takes no property it does not name, and nothing for null."""
    made = {name: value for name, value in schema.items() if name not in ("default", "required")}
    if "properties" in made:
        made["properties"] = {name: closed(one) for name, one in made["properties"].items()}
        made["additionalProperties"] = False
    if "items" in made:
        made["items"] = closed(made["items"])
    if schema.get("required"):
        made["required"] = schema["required"]
    return made


def with_table(page: str, schema: Object) -> str:
    """The page with the table of values between its two marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    lines = ["| value | default | meaning |", "|---|---|---|"]
    lines += [f"| `{path}` | {default} | {text} |" for path, default, text in rows(schema, values)]
    return f"{head}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{tail}"


def rows(schema: Object, values: Object) -> Iterator[tuple[str, str, str]]:
    """(path, default, meaning) of every value that is set by itself."""

    def resolved(one: Object) -> Object:
        name = one.get("$ref", "").rpartition("/")[2]
        return {**schema["definitions"][name], **one} if name else one

    def walk(path: str, one: Object, value: Any) -> Iterator[tuple[str, str, str]]:
        one = resolved(one)
        inner = one.get("properties")
        more = one.get("additionalProperties")
        if inner and not one.get("x-whole"):
            for name, part in inner.items():
                below = value.get(name) if isinstance(value, dict) else None
                yield from walk(f"{path}.{name}" if path else name, part, below)
        elif isinstance(more, dict) and "$ref" in more:
            yield path, shown(value), one["description"]
            yield from walk(f"{path}.NAME", more, None)
        else:
            yield path, shown(value), one["description"]

    yield from walk("", schema, values)


def shown(value: Any) -> str:
    """A default, as it stands in YAML."""
    if value in (None, "", [], {}):
        return ""
    return f"`{json.dumps(value)}`" if isinstance(value, dict | list) else f"`{value}`"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/chart.py")
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    different = [
        path
        for path, text in files().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in different:
        print(path.relative_to(ROOT))
        if not given.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path], encoding="utf-8")
    return 1 if given.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
