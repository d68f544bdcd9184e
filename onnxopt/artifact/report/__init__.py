"""report.html: one page about an artifact, its figures and measurements. Part of artifact, with the same imports."""
