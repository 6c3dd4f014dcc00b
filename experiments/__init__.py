"""One file a claim of a paper: composes `geom`, owns no mathematics."""
