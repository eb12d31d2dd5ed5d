"""The fused CPU kernels of unilab: a library of terms and the assembler that fuses a task's terms.

This package needs Numba and NumPy only. It never imports unilab, torch or mujoco.
"""
