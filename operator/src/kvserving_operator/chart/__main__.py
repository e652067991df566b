"""Writes or checks the generated files of the chart: ``python -m kvserving_operator.chart --write FOLDER``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import generated
from . import annotated, dashboards, readme, schema, templates


def files(chart: Path) -> dict[str, str]:
    """Return the text of every generated file of the chart in ``chart``, whose values and README are read."""
    values = annotated.read((chart / "values.yaml").read_text(encoding="utf-8"))
    return {
        "values.schema.json": schema.render(values),
        "README.md": readme.render((chart / "README.md").read_text(encoding="utf-8"), values),
        "templates/crds.yaml": templates.crds(),
        "templates/_rules.tpl": templates.rules(),
        **{f"dashboards/{name}.json": text for name, text in dashboards.render().items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the files in the named folder; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvserving_operator.chart", description="Files of the chart.")
    generated.folder_actions(parser)
    options = parser.parse_args(arguments)
    try:
        made = files(options.write or options.check)
    except annotated.Unannotated as error:
        print(f"values.yaml: {error}", file=sys.stderr)
        return 1
    return max(generated.write_or_check(name, text, options, "its sources") for name, text in made.items())


if __name__ == "__main__":
    sys.exit(main())
