"""The operator tables: what each operator means, in a row."""
