"""Key functions of the gate, one file each; every module with a `KEY` is one."""
