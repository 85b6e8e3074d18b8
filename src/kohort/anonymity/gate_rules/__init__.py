"""Rules of the gate, one file each; every module with a `RULE` is one."""
