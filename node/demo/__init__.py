"""DeMo, exactly (DESIGN.md section 4): chunks, transforms, top-k, integer aggregation."""
