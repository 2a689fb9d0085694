"""Sphinx's settings for the course as static pages: what tools/pages.py builds them with."""

project = html_title = "Scaling PyTorch training"
copyright = "MIT licence"
extensions = ["myst_nb"]
templates_path = ["templates"]
html_theme = "furo"
html_js_files = ["course.js", "explorers.js"]
html_css_files = ["course.css"]
html_show_sphinx = False
html_copy_source = False
html_show_search_summary = False  # a page opened from a disk may not fetch others
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # widgets are pictures here
nb_merge_streams = True
nb_code_prompt_show = "Show the {type}"
nb_code_prompt_hide = "Hide the {type}"
nb_mime_priority_overrides = [("html", "text/plain", 100)]
myst_heading_anchors = 3
mathjax_path = "no-page-has-formulas.js"  # one with formulas would link to nothing
suppress_warnings = ["misc.highlighting_failure", "mystnb.unknown_mime_type"]
