"""Self-contained HTML pages from jinja2 templates: no script, no font, no file beside them."""

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def page_environment(package: str) -> Environment:
    """Templates of `package` (its folder `templates`), escaped, with `page.css` of this package to include."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("specdeploy.charts")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
