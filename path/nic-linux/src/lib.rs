//! Network interfaces of the Linux kernel: set-up and data path
