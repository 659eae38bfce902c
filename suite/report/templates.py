"""The pages' templates."""

import jinja2

from suite.resources import resource_dir


def templates() -> jinja2.Environment:
    """The environment that the shipped templates are rendered in: HTML escaped, undefined names refused."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_dir("templates")),
        autoescape=lambda name: name is not None and ".html." in name,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["cell"] = lambda text: " ".join(str(text).split()).replace("|", "\\|")
    return environment
