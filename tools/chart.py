"""Writes what of the charts follows from code: CRDs, the webhook's configuration, roles, the schema
of a policy among the values, the words that explain values (comments and tables), what Artifact Hub
shows. Nothing of it is typed a second time.

    python tools/chart.py            writes; run it after changing one of those
    python tools/chart.py --check    says what would change, and ends with 1 if anything would

The objects are made for a release of placeholder names, which become expressions of the template.
"""

from __future__ import annotations

import argparse
import base64
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
MADE = "  # Made by tools/chart.py from here on.\n"
"""In a Chart.yaml: what follows is what Artifact Hub shows."""
ICON = ROOT / "helm" / "icon.svg"
EXAMPLE = ROOT / "examples" / "kubernetes" / "policy.yaml"
VALUES = """\
# Values of the chart stitch. tools/chart.py makes the comments from values.schema.json, which
# checks what is given; docs/values.md and README.md have the same as a table.
"""
Object = dict[str, Any]
NAMES = {
    "xreleasex": ".Release.Name",
    "xnamespacex": ".Release.Namespace",
    "xfailurepolicyx": ".Values.webhook.failurePolicy",
}
"""Placeholders and the expressions that take their place."""
PLACEHOLDER = re.compile("|".join(NAMES))
ALONE = re.compile(r"(?<=[:-] )\{\{ ([^{}]*) \}\}$", re.MULTILINE)
KINDS = {
    "StitchPolicy": "What jobs of some namespaces may be given, by an administrator",
    "StitchedJob": "What became of a job, written by the reconciler",
}
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
    values = CHART / "values.yaml"
    given = yaml.safe_load(values.read_text(encoding="utf-8"))
    found[values] = VALUES + "\n".join(explained(json.loads(found[schema]), given)) + "\n"
    for page in PAGES:
        found[page] = with_table(page.read_text(encoding="utf-8"), json.loads(found[schema]))
    for chart in (CHART, CRDS):
        settings = chart / "Chart.yaml"
        found[settings] = presented(settings.read_text(encoding="utf-8"))
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

    @classmethod
    def block(cls, document: Any, **style: Any) -> str:
        return str(yaml.dump(document, Dumper=cls, sort_keys=False, width=1000, **style))


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
    text = Plain.block(document)
    if "{{" in text:
        raise ValueError("a template would read it")
    return text


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
    lines = ["| Key | Type | Default | Description |", "|-----|------|---------|-------------|"]
    lines += [f"| `{path}` | {rest} |" for path, *cells in rows(schema, values)
              for rest in [" | ".join(cells)]]  # fmt: skip
    return f"{head}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{tail}"


def kind(schema: Object) -> str:
    """The type of a value as helm-docs names it."""
    names = {"boolean": "bool", "integer": "int", "array": "list"}
    given = schema.get("type", "string" if "enum" in schema else "")
    return "/".join(names.get(one, one) for one in ([given] if isinstance(given, str) else given))


def rows(schema: Object, values: Object) -> Iterator[tuple[str, str, str, str]]:
    """(path, type, default, meaning) of every value that is set by itself."""

    def walk(path: str, one: Object, value: Any) -> Iterator[tuple[str, str, str, str]]:
        one = resolved(schema, one)
        inner = one.get("properties")
        if inner and not one.get("x-whole"):
            for name, part in inner.items():
                below = value.get(name) if isinstance(value, dict) else None
                yield from walk(f"{path}.{name}" if path else name, part, below)
        else:
            yield path, kind(one), shown(value), one["description"]
        if "x-entry" in one:
            yield from walk(f"{path}.NAME", one["x-entry"], None)

    yield from walk("", schema, values)


def explained(schema: Object, values: Object) -> Iterator[str]:
    """Lines of values.yaml: every value under what it means, as helm-docs reads it."""

    def walk(one: Object, value: Object, indent: str) -> Iterator[str]:
        for name, below in value.items():
            part = resolved(schema, one.get("properties", {}).get(name) or one["x-entry"])
            words = part["description"]
            inside = bool(part.get("properties")) and not part.get("x-whole")
            if not indent:
                yield ""
            if isinstance(below, dict) and below and (inside or "x-entry" in part):
                yield from (f"{indent}# {words}", f"{indent}{name}:")
                yield from walk(part, below, f"{indent}  ")
            else:
                yield f"{indent}# -- {words}"
                innermost = None if isinstance(below, dict | list) else False
                text = Plain.block({name: below}, default_flow_style=innermost)
                yield from (f"{indent}{line}" for line in text.splitlines())

    yield from walk(schema, values, "")


def resolved(schema: Object, one: Object) -> Object:
    """With what it refers to; `x-entry` is the schema of entries with names of the user's."""
    name = one.get("$ref", "").rpartition("/")[2]
    made = {**schema["definitions"][name], **one} if name else one
    more = made.get("additionalProperties")
    return {**made, "x-entry": more} if isinstance(more, dict) and "$ref" in more else made


def presented(settings: str) -> str:
    """A Chart.yaml with what Artifact Hub shows: the kinds that it defines, and its picture."""
    head, _, _ = settings.partition(MADE)
    kinds = [
        {
            "kind": spec["names"]["kind"],
            "version": version["name"],
            "name": f"{spec['names']['plural']}.{spec['group']}",
            "displayName": spec["names"]["kind"],
            "description": KINDS[spec["names"]["kind"]],
        }
        for spec in (webhook.policy_definition()["spec"], reconciler.job_definition()["spec"])
        for version in spec["versions"]
    ]
    example = [yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))]
    text = f"{head}{MADE}"
    for name, document in (("crds", kinds), ("crdsExamples", example)):
        lines = "".join(f"    {line}\n" for line in Plain.block(document).splitlines())
        text += f"  artifacthub.io/{name}: |\n{lines}"
    picture = base64.b64encode(ICON.read_bytes()).decode()
    return f"{text}icon: data:image/svg+xml;base64,{picture}\n"


def shown(value: Any) -> str:
    """A default, as it stands in YAML."""
    if value in (None, "", [], {}):
        return ""
    return f"`{json.dumps(value)}`" if isinstance(value, dict | list) else f"`{value}`"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/chart.py")
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    made = files()
    different = [
        path
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in different:
        print(path.relative_to(ROOT))
        if not given.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
    return 1 if given.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
