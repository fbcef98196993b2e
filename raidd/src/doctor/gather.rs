//! Looks at the machine. What is read from files is read below a root, so that a test can lay out any machine it likes; drivers
//! and limits are those of this process.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use parity_kernels::calibrate::{Calibration, Op};
use parity_kernels::cuda::{self, DeviceInfo, GpuOptions, Selection, Unavailable};
use parity_kernels::offload::Opener;
use parity_kernels::{Arena, Engine};
use ublk_frontend::{Features, UblkError};

use super::facts::{
    ConfigFault, Cpu, Cuda, Driver, Facts, Gpu, Gpus, Md, Memory, Pci, Ublk, Wanted,
};
use crate::config::{Config, ZeroCopy};
use crate::guard::Guard;
use crate::lane::choice::GpuChoice;
use crate::units::Bytes;

/// The files of a machine.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
}

/// Looks at this machine. `config_error` says why `config` is not what the file says.
pub fn gather(config: &Config, config_error: Option<ConfigFault>) -> Facts {
    let tree = Tree::new("/");
    let release = tree.kernel_release();
    Facts {
        config_error,
        ublk: Ublk {
            driver: ublk_driver(),
            io_uring_disabled: tree.number("proc/sys/kernel/io_uring_disabled"),
            module: tree.has_module(&release, "ublk_drv"),
            zero_copy_wanted: config.defaults.zero_copy == ZeroCopy::Auto,
        },
        kernel_release: release,
        cpu: cpu(&tree, config.defaults.parity_engine.as_deref()),
        gpu: gpus(&tree, wanted(&config.defaults.gpu)),
        memory: memory(&tree, config),
        md: tree.md(config.manage_mdadm_conf, &Guard::system()),
    }
}

/// What the configuration's `gpu:` asks for.
pub fn wanted(choice: &GpuChoice) -> Wanted {
    match choice {
        GpuChoice::Off => Wanted::Off,
        GpuChoice::Auto => Wanted::Auto,
        GpuChoice::These(names) => Wanted::These(names.iter().map(ToString::to_string).collect()),
    }
}

impl Tree {
    /// The files below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Tree {
        Tree { root: root.into() }
    }

    /// The first line of a file, without blanks around it.
    fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.lines().next()?.trim().to_string()).filter(|l| !l.is_empty())
    }

    fn number<T: std::str::FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.line(path)?.parse().ok()
    }

    fn text(&self, path: impl AsRef<Path>) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.root.join(path).exists()
    }

    /// `uname -r`.
    pub fn kernel_release(&self) -> String {
        self.line("proc/sys/kernel/osrelease")
            .unwrap_or_else(|| "unknown".into())
    }

    /// Whether the modules of that kernel include one, or the kernel has it built in; none where nothing lists them.
    pub fn has_module(&self, release: &str, name: &str) -> Option<bool> {
        let folder = Path::new("lib/modules").join(release);
        if !self.exists(folder.join("modules.dep")) {
            return None;
        }
        let lists =
            self.text(folder.join("modules.dep")) + &self.text(folder.join("modules.builtin"));
        Some(lists.lines().any(|line| {
            let file = line.split(':').next().unwrap_or(line);
            let module = file.rsplit('/').next().unwrap_or(file);
            module.split('.').next() == Some(name)
        }))
    }

    /// PCI addresses of NVIDIA's display controllers and accelerators.
    pub fn nvidia_cards(&self) -> Vec<String> {
        let mut cards: Vec<String> = fs::read_dir(self.root.join("sys/bus/pci/devices"))
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|address| {
                let device = Path::new("sys/bus/pci/devices").join(address);
                let class = self.line(device.join("class")).unwrap_or_default();
                self.line(device.join("vendor")).as_deref() == Some("0x10de")
                    && (class.starts_with("0x03") || class.starts_with("0x12"))
            })
            .collect();
        cards.sort();
        cards
    }

    /// A device's link, memory window and place.
    pub fn pci(&self, address: &str) -> Pci {
        let device = Path::new("sys/bus/pci/devices").join(address.to_ascii_lowercase());
        let speed = |file| {
            let text = self.line(device.join(file))?;
            Some(text.trim_end_matches(" PCIe").to_string()).filter(|s| !s.starts_with("Unknown"))
        };
        // 0 and 255 lanes are what the kernel says where it does not know.
        let width = |file| {
            self.number(device.join(file))
                .filter(|w| (1..=32).contains(w))
        };
        Pci {
            width: width("current_link_width"),
            max_width: width("max_link_width"),
            speed: speed("current_link_speed"),
            max_speed: speed("max_link_speed"),
            bar1: bar1(&self.text(device.join("resource"))),
            numa: self.number(device.join("numa_node")),
        }
    }

    /// The instruction sets that the engines use, of those that the kernel lists.
    fn cpu_features(&self) -> (String, Vec<String>) {
        const OF_INTEREST: [&str; 10] = [
            "ssse3", "avx2", "avx512f", "avx512bw", "avx512vl", "gfni", "neon", "asimd", "sve",
            "sve2",
        ];
        let cpuinfo = self.text("proc/cpuinfo");
        let value = |key: &str| {
            let line = cpuinfo.lines().find(|l| l.starts_with(key))?;
            Some(line.split_once(':')?.1.trim())
        };
        let model = value("model name").unwrap_or("unknown CPU").to_string();
        let flags: Vec<&str> = value("flags")
            .or_else(|| value("Features"))
            .unwrap_or_default()
            .split(' ')
            .collect();
        let features = OF_INTEREST
            .iter()
            .filter(|f| flags.contains(f))
            .map(|f| f.to_string())
            .collect();
        (model, features)
    }

    /// In bytes.
    fn total_memory(&self) -> u64 {
        let meminfo = self.text("proc/meminfo");
        let kib = meminfo
            .lines()
            .find_map(|l| l.strip_prefix("MemTotal:"))
            .and_then(|rest| {
                rest.trim()
                    .trim_end_matches("kB")
                    .trim()
                    .parse::<u64>()
                    .ok()
            });
        kib.unwrap_or(0) << 10
    }

    /// The word in brackets of `always [madvise] never`.
    fn huge_pages(&self) -> Option<String> {
        let line = self.line("sys/kernel/mm/transparent_hugepage/enabled")?;
        let (_, rest) = line.split_once('[')?;
        Some(rest.split_once(']')?.0.to_string())
    }

    /// CAP_IPC_LOCK, bit 14 of the effective capabilities.
    fn may_lock(&self) -> bool {
        let status = self.text("proc/self/status");
        let mask = status
            .lines()
            .find_map(|l| l.strip_prefix("CapEff:"))
            .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> 14 & 1 != 0)
    }

    /// mdadm's hold on this machine.
    pub fn md(&self, managed: bool, guard: &Guard) -> Md {
        let rule = ["etc", "usr/lib", "lib"]
            .iter()
            .map(|dir| Path::new(dir).join("udev/rules.d/64-md-raid-assembly.rules"))
            // An empty file, or a link to /dev/null, is how a rule is switched off.
            .find(|path| self.exists(path))
            .filter(|path| !self.text(path).trim().is_empty());
        let mdstat = self.text("proc/mdstat");
        let inactive = mdstat
            .lines()
            .filter_map(|line| line.split_once(" : inactive"))
            .map(|(name, _)| name.to_string())
            .collect();
        Md {
            rule: rule.map(|path| Path::new("/").join(path)),
            managed,
            note_mdadm: guard.mdadm.clone(),
            note_udev: guard.udev.clone(),
            inactive,
        }
    }
}

/// Size of what NVIDIA calls BAR1, from sysfs' file of starts, ends and flags: the second window that is in use, as one of
/// 64 bits takes the place of two.
fn bar1(resource: &str) -> Option<u64> {
    let size = |line: &str| {
        let mut fields = line
            .split(' ')
            .map(|f| u64::from_str_radix(f.trim_start_matches("0x"), 16).ok());
        let (start, end) = (fields.next()??, fields.next()??);
        (end > start).then(|| end - start + 1)
    };
    resource.lines().take(6).filter_map(size).nth(1)
}

fn ublk_driver() -> Driver {
    match Features::probe() {
        Ok(features) => Driver::Features(features.bits()),
        Err(UblkError::NoDriver) => Driver::Absent,
        Err(UblkError::NoPermission) => Driver::Forbidden,
        Err(UblkError::KernelTooOld) => Driver::TooOld,
        Err(other) => Driver::Broken(other.to_string()),
    }
}

fn cpu(tree: &Tree, pinned: Option<&str>) -> Cpu {
    let (model, features) = tree.cpu_features();
    let calibration = pinned
        .and_then(Calibration::pinned_by_name)
        .unwrap_or_else(Calibration::measure);
    Cpu {
        model,
        features,
        engines: Engine::names_here().into_iter().map(Into::into).collect(),
        pinned: pinned.map(str::to_string),
        chosen: Op::ALL.iter().map(|op| chosen(&calibration, *op)).collect(),
    }
}

/// `encode: avx2 up to 64 KiB, avx512 above`.
fn chosen(calibration: &Calibration, op: Op) -> String {
    let mut parts: Vec<(&str, Option<usize>)> = Vec::new();
    for row in calibration.rows().iter().filter(|row| row.op == op) {
        match parts.last_mut() {
            Some(last) if last.0 == row.engine.name() => last.1 = row.up_to,
            _ => parts.push((row.engine.name(), row.up_to)),
        }
    }
    let words: Vec<String> = parts
        .iter()
        .map(|(name, up_to)| match up_to {
            Some(bytes) => format!("{name} up to {}", Bytes(*bytes as u64)),
            None if parts.len() > 1 => format!("{name} above"),
            None => name.to_string(),
        })
        .collect();
    format!("{}: {}", op.name(), words.join(", "))
}

fn gpus(tree: &Tree, wanted: Wanted) -> Gpus {
    let found = match wanted {
        Wanted::Off => Err(Unavailable::NoDriver),
        _ => cuda::probe().map(|probe| {
            let selection = match &wanted {
                Wanted::These(names) => Selection::Devices(names.clone()),
                _ => Selection::Auto,
            };
            // A name that fits nothing is judged later.
            let chosen = selection.choose(&probe.devices).unwrap_or_default();
            let gpu = |info: DeviceInfo| Gpu {
                pci: tree.pci(&info.pci_address),
                opens: chosen.contains(&info).then(|| {
                    let info = info.clone();
                    let silent = || Err("the CUDA driver does not answer".to_string());
                    cuda::patiently(move || opens(&info)).unwrap_or_else(silent)
                }),
                info,
            };
            Cuda {
                version: probe.driver_version,
                devices: probe.devices.into_iter().map(gpu).collect(),
            }
        }),
    };
    Gpus {
        wanted,
        cards: tree.nvidia_cards(),
        module_version: tree.line("sys/module/nvidia/version"),
        found,
    }
}

/// Opens a lane over a little memory and closes it again.
fn opens(info: &DeviceInfo) -> Result<(), String> {
    let arena = Arena::new(64, 65536).map_err(|e| e.to_string())?;
    let gpu = cuda::Gpu::new(info.clone(), GpuOptions::default());
    let lane = gpu.open(arena.memory()).map_err(|e| e.to_string())?;
    let closed = lane.close().map_err(|e| e.to_string());
    if closed.is_err() {
        // The device may still reach the memory.
        std::mem::forget(arena);
    }
    closed
}

fn memory(tree: &Tree, config: &Config) -> Memory {
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
    let options = config.defaults.options(false);
    Memory {
        limit: (limit != nix::libc::RLIM_INFINITY).then_some(limit),
        may_lock: tree.may_lock(),
        total: tree.total_memory(),
        queues: u64::from(options.queues),
        per_queue: config.defaults.buffer_memory.0,
        huge_pages: tree.huge_pages(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let tree = Tree::new(root.path());
        (root, tree)
    }

    const CARD: &str = "sys/bus/pci/devices/0000:3b:00.0";

    #[test]
    fn a_card_on_the_bus() {
        let file = |name: &str| format!("{CARD}/{name}");
        let (_root, tree) = tree(&[
            (&file("vendor"), "0x10de\n"),
            (&file("class"), "0x030200\n"),
            (&file("current_link_width"), "8\n"),
            (&file("max_link_width"), "16\n"),
            (&file("current_link_speed"), "2.5 GT/s PCIe\n"),
            (&file("max_link_speed"), "32.0 GT/s PCIe\n"),
            (&file("numa_node"), "1\n"),
            (
                &file("resource"),
                "0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200\n\
                 0x0000380000000000 0x0000383fffffffff 0x000000000014220c\n\
                 0x0000000000000000 0x0000000000000000 0x0000000000000000\n",
            ),
            ("sys/bus/pci/devices/0000:3b:00.1/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:3b:00.1/class", "0x040300\n"),
            ("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n"),
            ("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n"),
        ]);
        assert_eq!(tree.nvidia_cards(), ["0000:3b:00.0"]);
        let pci = tree.pci("0000:3B:00.0");
        assert_eq!((pci.width, pci.max_width), (Some(8), Some(16)));
        assert_eq!(pci.speed.as_deref(), Some("2.5 GT/s"));
        assert_eq!(pci.max_speed.as_deref(), Some("32.0 GT/s"));
        assert_eq!((pci.bar1, pci.numa), (Some(256 << 30), Some(1)));
    }

    #[test]
    fn windows_of_64_bits_take_two_places() {
        let lines = "0x0000104002000000 0x0000104002ffffff 0x000000000014220c\n\
                     0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                     0x0000100000000000 0x0000103fffffffff 0x000000000014220c\n";
        assert_eq!(bar1(lines), Some(256 << 30));
        assert_eq!(bar1("0x1000 0x1fff 0x0\n"), None);
        assert_eq!(bar1(""), None);
    }

    #[test]
    fn what_sysfs_does_not_say_is_not_invented() {
        let file = |name: &str| format!("{CARD}/{name}");
        let (_root, tree) = tree(&[
            (&file("current_link_width"), "255\n"),
            (&file("current_link_speed"), "Unknown\n"),
            (&file("numa_node"), "-1\n"),
            (&file("resource"), "nonsense\n0x0 0x0 0x0\n"),
        ]);
        assert_eq!(tree.pci("0000:3b:00.0"), Pci::default());
        assert_eq!(tree.pci("0000:ff:00.0"), Pci::default());
        assert!(tree.nvidia_cards().is_empty());
    }

    #[test]
    fn modules_are_found_built_in_or_not() {
        let (_root, tree) = tree(&[
            (
                "lib/modules/6.12/modules.dep",
                "kernel/drivers/block/ublk_drv.ko.xz:\nkernel/x.ko: kernel/y.ko\n",
            ),
            ("lib/modules/6.12/modules.builtin", "kernel/z.ko\n"),
        ]);
        assert_eq!(tree.has_module("6.12", "ublk_drv"), Some(true));
        assert_eq!(tree.has_module("6.12", "z"), Some(true));
        assert_eq!(tree.has_module("6.12", "y"), Some(false));
        assert_eq!(tree.has_module("6.13", "ublk_drv"), None);
    }

    #[test]
    fn mdadm_and_its_rule() {
        let (_root, tree) = tree(&[
            ("usr/lib/udev/rules.d/64-md-raid-assembly.rules", "RUN+=x\n"),
            (
                "proc/mdstat",
                "Personalities : [raid6]\nmd127 : inactive sdb[0](S)\n      123 blocks\nmd0 : active raid1 sda\n",
            ),
        ]);
        let guard = Guard::default();
        let md = tree.md(true, &guard);
        assert_eq!(
            md.rule.as_deref(),
            Some(Path::new("/usr/lib/udev/rules.d/64-md-raid-assembly.rules"))
        );
        assert_eq!(md.inactive, ["md127"]);
        let masked = tree.root.join("etc/udev/rules.d/64-md-raid-assembly.rules");
        fs::create_dir_all(masked.parent().unwrap()).unwrap();
        fs::write(masked, "").unwrap();
        assert_eq!(tree.md(true, &guard).rule, None);
    }

    #[test]
    fn the_rest_of_proc_and_sys() {
        let (_root, tree) = tree(&[
            (
                "proc/cpuinfo",
                "processor: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 gfni avx512_vnni\n",
            ),
            ("proc/meminfo", "MemTotal:       1024 kB\n"),
            ("proc/self/status", "Name: x\nCapEff:\t0000000000004000\n"),
            (
                "sys/kernel/mm/transparent_hugepage/enabled",
                "always [madvise] never\n",
            ),
            ("proc/sys/kernel/osrelease", "6.12.1-x\n"),
            ("proc/sys/kernel/io_uring_disabled", "2\n"),
        ]);
        let (model, features) = tree.cpu_features();
        assert_eq!(
            (model.as_str(), &features[..]),
            ("Some CPU", &["avx2".to_string(), "gfni".into()][..])
        );
        assert_eq!(tree.total_memory(), 1 << 20);
        assert!(tree.may_lock());
        assert_eq!(tree.huge_pages().as_deref(), Some("madvise"));
        assert_eq!(tree.kernel_release(), "6.12.1-x");
        assert_eq!(tree.number("proc/sys/kernel/io_uring_disabled"), Some(2u32));
        let (_root, empty) = self::tree(&[]);
        assert_eq!(empty.total_memory(), 0);
        assert!(!empty.may_lock());
        assert_eq!(empty.kernel_release(), "unknown");
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let mut config = Config::default();
        config.defaults.gpu = GpuChoice::Off;
        let facts = gather(&config, None);
        assert!(!facts.cpu.engines.is_empty() && facts.memory.total > 0);
        assert_eq!(facts.cpu.chosen.len(), Op::ALL.len());
        assert!(
            facts.cpu.chosen[0].starts_with("encode: "),
            "{:?}",
            facts.cpu.chosen
        );
    }
}
