"""DeMo, exactly (DESIGN.md section 4): chunks, transforms, top-k, integer aggregation.

Three ways do the same: strip by strip in torch and numpy, which is the plain one; on an accelerator all at once
(accelerator.py, device_packing.py); on a CPU, for all but small models, in compiled kernels (cpu_kernels.py, kernels/).
"""
