"""The report page: what was gained, what each operation became, and why not, as one HTML file.

`view` makes a `Page` of a Report (pure), `render` writes it. The page asks for nothing: style,
script and data stand in it, and a Content-Security-Policy lets nothing else run.
"""
