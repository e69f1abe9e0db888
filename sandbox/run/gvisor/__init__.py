"""gVisor on its own: a kernel in user space, without Docker, without root, without hardware virtualisation."""
