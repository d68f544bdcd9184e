"""The report of an artifact: report.html, one file that shows what was done, what it saves, and what was measured."""
