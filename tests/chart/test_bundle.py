"""The manifests without Helm: current, without Helm's marks, in a namespace that enforces the restricted standard."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.chart import bundle
from tests.chart.charts import NAMESPACE, ROOT, Helm, kinds, one

from kvserving_operator.cli import operator

DEPLOY = ROOT / "deploy"


def test_the_file_is_current_and_a_difference_is_found(
    helm: Helm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert helm.path.is_file()
    assert bundle.main(["--check", str(DEPLOY)]) == 0, "run `make bundle`"
    assert bundle.main(["--write", str(tmp_path)]) == 0
    file = tmp_path / bundle.FILE_NAME
    assert file.read_text() == (DEPLOY / bundle.FILE_NAME).read_text()
    file.write_text(file.read_text().replace("replicas: 2", "replicas: 3"))
    assert bundle.main(["--check", str(tmp_path)]) == 1
    assert "differs from the chart" in capsys.readouterr().err


def test_it_is_a_release_without_helm(helm: Helm) -> None:
    objects = list(yaml.safe_load_all((DEPLOY / bundle.FILE_NAME).read_text()))
    assert "helm" not in (DEPLOY / bundle.FILE_NAME).read_text().lower().replace("charts/kvserving-operator", "")
    assert kinds(objects) == kinds(helm.template({"test": {"enabled": False}})) | {"Namespace"}
    labels = one(objects, "Namespace", NAMESPACE)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    made_first = ["Namespace", "CustomResourceDefinition", "CustomResourceDefinition", "ServiceAccount"]
    assert [obj["kind"] for obj in objects[:4]] == made_first


def test_the_base_names_the_one_file() -> None:
    base = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    assert base["resources"] == [bundle.FILE_NAME]


def test_the_overlay_of_the_examples_gives_the_operator_the_connectors_image_that_it_takes() -> None:
    overlay = yaml.safe_load((ROOT / "examples/gitops/kustomize/kustomization.yaml").read_text())
    (patch,) = overlay["patches"]
    (change,) = yaml.safe_load(patch["patch"])
    objects = list(yaml.safe_load_all((DEPLOY / bundle.FILE_NAME).read_text()))
    container = one(objects, **patch["target"])["spec"]["template"]["spec"]["containers"][0]
    assert (change["op"], change["path"]) == ("add", "/spec/template/spec/containers/0/args/-")
    arguments = [*container["args"], change["value"]]
    run = operator.command.commands["run"]
    with run.make_context("run", arguments[arguments.index("run") + 1 :]) as context:
        assert f"--connector-image={context.params['connector_image']}" == change["value"]
    assert [image["name"] for image in overlay["images"]] == [container["image"].partition(":")[0]]
