//! A small initial file system for the QEMU bed: busybox, the modules that reach the host's files, and an init
//! script. Written as a plain "newc" cpio archive (format: kernel Documentation/driver-api/early-userspace/buffer-format).

use super::kernel::Kernel;
use crate::sh;
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::path::Path;

/// Modules needed before the host's files can be seen; what is built in or unknown to a kernel is left out.
const MODULES: [&str; 7] = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "nvme",
    "configfs",
];

/// The kernel asks for modules here, in the first root; the modules and a modprobe that can unpack them are in the second.
const MODPROBE: &[u8] =
    b"#!/bin/busybox sh\nexec /bin/busybox chroot /mnt/root /usr/sbin/modprobe \"$@\"\n";

const FILE: u32 = 0o100_755;
const FOLDER: u32 = 0o040_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// Writes the archive to `to`. `init` is the text of its first program, in which the line `@modules@` stands for
/// loading the modules.
pub fn write(kernel: &Kernel, init: &str, to: &Path) -> Result<()> {
    let mut archive = Archive::default();
    for folder in ["bin", "sbin", "dev", "proc", "sys", "mnt", "host", "mod"] {
        archive.add(folder, FOLDER, &[], (0, 0));
    }
    archive.add("dev/console", CHARACTER_DEVICE, &[], (5, 1));
    archive.add("dev/null", CHARACTER_DEVICE, &[], (1, 3));
    let busybox = sh::which("busybox").context("no busybox; install busybox-static")?;
    archive.add("bin/busybox", FILE, &std::fs::read(busybox)?, (0, 0));
    let mut load = String::new();
    for (number, file) in in_order(kernel)?.iter().enumerate() {
        let name = format!("mod/{number}.ko");
        archive.add(&name, FILE, &module(&kernel.modules.join(file))?, (0, 0));
        load += &format!("insmod /{name}\n");
    }
    archive.add("sbin/modprobe", FILE, MODPROBE, (0, 0));
    archive.add(
        "init",
        FILE,
        init.replace("@modules@\n", &load).as_bytes(),
        (0, 0),
    );
    archive.add("TRAILER!!!", 0, &[], (0, 0));
    std::fs::write(to, archive.bytes)?;
    Ok(())
}

/// A module's bytes, uncompressed.
fn module(path: &Path) -> Result<Vec<u8>> {
    let tool = match path.extension().and_then(|end| end.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return std::fs::read(path).with_context(|| format!("cannot read {}", path.display())),
    };
    let out = sh::cmd(tool, ["-dc"])
        .arg(path)
        .output()
        .with_context(|| format!("no {tool} to unpack kernel modules with"))?;
    if !out.status.success() {
        bail!("{tool} cannot unpack {}", path.display());
    }
    Ok(out.stdout)
}

/// Module files, each after those that it depends on.
fn in_order(kernel: &Kernel) -> Result<Vec<String>> {
    let list = std::fs::read_to_string(kernel.modules.join("modules.dep"))?;
    let mut files = HashMap::new();
    for line in list.lines() {
        if let Some((file, needs)) = line.split_once(':') {
            let name = file.rsplit('/').next().unwrap_or(file);
            let name = name.split(".ko").next().unwrap_or(name).replace('-', "_");
            files.insert(name, (file, needs));
        }
    }
    let mut order: Vec<String> = Vec::new();
    for wanted in MODULES {
        let Some((file, needs)) = files.get(wanted) else {
            continue;
        };
        // modules.dep names all needs, the deepest last.
        for file in needs.split_whitespace().rev().chain([*file]) {
            if !order.iter().any(|have| have == file) {
                order.push(file.to_owned());
            }
        }
    }
    Ok(order)
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, data: &[u8], device: (u32, u32)) {
        self.entries += 1;
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            u32::try_from(data.len()).unwrap_or(u32::MAX),
            0,
            0,
            device.0,
            device.1,
            u32::try_from(name.len() + 1).unwrap_or(u32::MAX),
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
