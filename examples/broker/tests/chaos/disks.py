"""Small disks for nodes, which a test can fill: a tmpfs each, mounted where this process may."""

import os
import shutil
import subprocess


class SmallDisk:
    """A file system of some megabytes, mounted at a folder."""

    def __init__(self, folder, megabytes):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._ballast = folder / "ballast"
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PermissionError(f"{' '.join(command)}: {done.stderr.strip()}")

    def fill(self):
        """Leave no space."""
        with self._ballast.open("ab", buffering=0) as file:
            size = 1 << 20
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def free(self):
        """Give the space back."""
        self._ballast.unlink(missing_ok=True)

    def unmount(self):
        """Take the file system away, with all that is on it."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False)


def why_not():
    """Why this process can mount no small disk, or None if it can."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return "small disks need root and mount"
    return None
