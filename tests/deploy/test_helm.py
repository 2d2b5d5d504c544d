"""The Helm chart: values match their schema and the templates, and Helm renders it, if it is there.

Nobody has run the chart in a cluster.
"""

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
import yaml

from cometmq.broker.base.config import effective_keys
from cometmq.cli.main import COMMANDS

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "cometmq"
HELM = shutil.which("helm")
TEMPLATES = sorted((CHART / "templates").iterdir())
ALL = "\n".join(path.read_text(encoding="utf-8") for path in TEMPLATES)


def values() -> dict[str, Any]:
    """The chart's own values."""
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return loaded


def paths(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of all values, with dots; `resources` and `settings` are one value each."""
    for name, value in table.items():
        if isinstance(value, dict) and name not in ("resources", "settings"):
            yield from paths(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_values_are_those_of_the_schema() -> None:
    """The defaults are accepted; a wrong name, type or number is not."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    validate = fastjsonschema.compile(schema)
    validate(values())
    for path, value in (
        ("broker.replicas", 0),
        ("broker.flushDiskType", "SOMETIMES"),
        ("console.enabled", "yes"),
        ("broker.storage.size", "20G"),
        ("broker.storrage", {}),
        ("image.pullPolicy", "Sometimes"),
    ):
        changed = copy.deepcopy(values())
        *parents, name = path.split(".")
        table = changed
        for parent in parents:
            table = table[parent]
        table[name] = value
        with pytest.raises(fastjsonschema.JsonSchemaValueException):
            validate(changed)


def test_templates_use_each_value_and_no_other() -> None:
    """A value without effect, and one that does not exist, are mistakes."""
    used = set(re.findall(r"\.Values\.([A-Za-z0-9.]+)", ALL))
    assert used == set(paths(values()))


def test_templates_start_commands_with_settings_that_exist() -> None:
    """Each container runs a command of ours; each --set names a setting."""
    commands = re.findall(r"- cometmq\n\s+- ([\w-]+)\n", ALL)
    assert sorted(commands) == ["broker", "console", "controller", "name-server"]
    assert set(commands) <= set(COMMANDS)
    own = {"kvConfigPath", "configStorePath", "cometmqControllerAddress"}
    assert set(re.findall(r"--set=(\w+)=", ALL)) - own <= set(effective_keys())
    assert ALL.count("cometmq.containerSecurity") == 1 + len(commands)
    assert ALL.count("automountServiceAccountToken: false") == len(commands)


@pytest.mark.skipif(HELM is None, reason="helm is not installed")
@pytest.mark.parametrize(
    "options", [(), ("--set", "console.enabled=false,controller.etcd=http://e:1")]
)
def test_helm_renders_it(options: tuple[str, ...]) -> None:
    """`helm lint --strict` and `helm template`: documents of Kubernetes without root."""
    assert HELM is not None
    for command in (("lint", "--strict"), ("template", "orders")):
        done = subprocess.run(
            [HELM, *command, str(CHART), *options], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    documents = [each for each in yaml.safe_load_all(done.stdout) if each]
    kinds = [each["kind"] for each in documents]
    assert kinds.count("StatefulSet") == 3
    assert kinds.count("Deployment") == int(not options)
    for document in documents:
        if document["kind"] in ("StatefulSet", "Deployment"):
            pod = document["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            (container,) = pod["containers"]
            assert container["securityContext"]["readOnlyRootFilesystem"]
