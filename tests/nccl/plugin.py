"""The env plugin's structs for ctypes, and how the tests start a child that loads it."""

import ctypes
import os
import subprocess
import sys

INIT_V1 = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint8, ctypes.c_uint8, ctypes.c_uint8, ctypes.c_char_p)
INIT_V2 = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint8, ctypes.c_uint8, ctypes.c_uint8, ctypes.c_char_p, ctypes.c_void_p)
FINALIZE = ctypes.CFUNCTYPE(ctypes.c_int)
GET_ENV = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)  # an address, so that tests see whether it stays


def _struct(init):
    return type("Plugin", (ctypes.Structure,), {"_fields_": [("name", ctypes.c_char_p), ("init", init), ("finalize", FINALIZE), ("get_env", GET_ENV)]})


class Plugin:
    """One of the two interfaces of the shared object."""

    def __init__(self, path, version):
        self.version = version
        self.library = ctypes.CDLL(path)
        self.struct = _struct(INIT_V1 if version == 1 else INIT_V2).in_dll(self.library, f"ncclEnvPlugin_v{version}")

    def init(self):
        # A logger that would crash: the plugin must not call it.
        return self.struct.init(2, 32, 3, b"") if self.version == 1 else self.struct.init(2, 32, 3, b"", 1)

    def finalize(self):
        return self.struct.finalize()

    def address(self, name):
        return self.struct.get_env(None if name is None else name.encode())

    def get(self, name):
        address = self.address(name)
        return None if address is None else ctypes.string_at(address).decode("utf-8", "surrogateescape")


def child(script, case, *arguments, environment=None, status=0, **options):
    """Runs `script --child CASE ARGUMENT...` with no other variable of NCCL's or the plugin's, and returns what it wrote."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "TENSORLANE_NCCL_"))}
    done = subprocess.run([sys.executable, script, "--child", case, *map(str, arguments)], env=clean | (environment or {}), capture_output=True, text=True,
                          errors="surrogateescape", timeout=60, **options)
    assert done.returncode == status, (case, arguments, environment, done)
    return done
