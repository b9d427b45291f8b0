"""The HTML page, from records and verdicts."""

from joma.errors import import_extra

import_extra("jinja2", "report")  # every page is made from templates
