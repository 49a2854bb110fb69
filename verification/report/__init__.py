"""The report of a run: terminal, JSON, Markdown, HTML and errata."""
