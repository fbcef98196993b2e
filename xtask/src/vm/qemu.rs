//! The QEMU bed: a packaged distribution kernel, the host's files over 9p, emulated NVMe drives. Uses hardware
//! virtualisation where the machine has it and software emulation (about twenty times slower) where not.

use super::guest::Job;
use super::kernel::{self, Kernel};
use super::process::{self, End, Output};
use super::{GUEST_DIED, TIMED_OUT, VmOptions, initramfs};
use crate::sh;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const QEMU: &str = "qemu-system-x86_64";

/// Modules that the guest loads once it has its root, so that a test finds what a server has.
const LOADED: &str = "ublk_drv raid0 raid456 brd loop dm_mod xfs ext4";

pub fn run(options: &VmOptions, job: &Job, out: Output<'_>) -> Result<i32> {
    let needs = [
        (QEMU, "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("depmod", "kmod"),
        ("xz", "xz-utils"),
    ];
    let missing: Vec<&str> = needs
        .iter()
        .filter(|(program, _)| sh::which(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    crate::setup::install(&missing)?;
    let kernel = kernel::packaged(options.kernel.as_deref())?;
    let initrd = job.dir().join("initrd");
    initramfs::write(&kernel, &init_script(job, &kernel)?, &initrd)?;
    let limit = options.seconds.unwrap_or(1200);
    let mut command = sh::cmd("timeout", ["-s", "KILL", &(limit + 30).to_string()]);
    machine(&mut command, options, &kernel, &initrd, job)?;
    let end = process::run(
        &mut command,
        job.dir(),
        Duration::from_secs(limit),
        out,
        |_| false,
    )?;
    if let Some(code) = job.exit_status() {
        return Ok(code);
    }
    if end == End::TimedOut {
        eprintln!("bed: the QEMU guest was stopped after {limit} s; its console ended with:");
    } else {
        eprintln!("bed: the QEMU guest ended without an exit status; its console ended with:");
    }
    let console = std::fs::read(job.dir().join("console")).unwrap_or_default();
    let console = String::from_utf8_lossy(&console);
    let lines: Vec<&str> = console.lines().collect();
    for line in lines.iter().skip(lines.len().saturating_sub(12)) {
        eprintln!("  {line}");
    }
    Ok(if end == End::TimedOut {
        TIMED_OUT
    } else {
        GUEST_DIED
    })
}

fn machine(
    command: &mut Command,
    options: &VmOptions,
    kernel: &Kernel,
    initrd: &Path,
    job: &Job,
) -> Result<()> {
    let append = format!(
        "console=ttyS0 quiet panic=-1 oops=panic raid=noautodetect mitigations=off {}",
        options.append.join(" ")
    );
    command
        .arg(sh::which(QEMU).context("no qemu-system-x86_64")?)
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(["-machine", "q35", "-cpu", "max", "-accel", accelerator()])
        .args(["-smp", &options.cpus.unwrap_or(2).to_string()])
        .args(["-m", options.memory.as_deref().unwrap_or("3G")])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", &append])
        .args([
            "-serial",
            &format!("file:{}", job.dir().join("console").display()),
        ])
        // The command's output has a channel of its own, so that the kernel's words do not get between its bytes.
        .args([
            "-device",
            "virtio-serial-pci",
            "-chardev",
            "file,id=out,path=/dev/stdout",
        ])
        .args(["-device", "virtserialport,chardev=out,name=out"])
        .args([
            "-object",
            "rng-random,id=rng,filename=/dev/urandom",
            "-device",
            "virtio-rng-pci,rng=rng",
        ]);
    share(command, "host", Path::new("/"), true)?;
    for (index, dir) in job.writable().iter().enumerate() {
        share(command, &format!("w{index}"), dir, false)?;
    }
    for number in 0..options.drives {
        let file = job.dir().join(format!("drive{number}"));
        std::fs::File::create(&file)?.set_len(options.drive_mib << 20)?;
        let file = file.display();
        let mut device = format!("nvme,serial=r{number},drive=n{number}");
        if !options.drive_props.is_empty() {
            device += &format!(",{}", options.drive_props);
        }
        command
            .args([
                "-drive",
                &format!("file={file},if=none,id=n{number},format=raw,cache=unsafe,discard=unmap"),
            ])
            .args(["-device", &device]);
    }
    Ok(())
}

/// KVM where the processor really has it: some hosts show a /dev/kvm that fails only once the guest runs.
fn accelerator() -> &'static str {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let capable = flags
        .split_whitespace()
        .any(|flag| flag == "vmx" || flag == "svm");
    let usable = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok();
    if capable && usable {
        "kvm"
    } else {
        "tcg,thread=multi"
    }
}

/// Offers a folder of the host to the guest.
fn share(command: &mut Command, tag: &str, dir: &Path, read_only: bool) -> Result<()> {
    let path = dir.to_str().context("a folder whose name is not text")?;
    if path.contains(',') {
        bail!("the folder {path} has a comma in its name, which QEMU cannot take");
    }
    let read_only = if read_only { ",readonly=on" } else { "" };
    command.args([
        "-virtfs",
        &format!(
            "local,path={path},mount_tag={tag},security_model=none,multidevs=remap{read_only}"
        ),
    ]);
    Ok(())
}

fn init_script(job: &Job, kernel: &Kernel) -> Result<String> {
    let options = "trans=virtio,version=9p2000.L,msize=512000";
    let root = job.build_root("/host", |index, _| {
        format!("-t 9p -o {options},cache=mmap w{index}")
    })?;
    let release = &kernel.release;
    let modules = sh::quote(&kernel.modules.to_string_lossy());
    let enter = job.script("enter", &enter_script(job))?;
    let enter = sh::quote(&enter.to_string_lossy());
    Ok(format!(
        "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/bin\n\
         mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sysfs /sys\n\
         @modules@\n\
         mount -t 9p -o {options},ro,cache=loose host /host || exit 1\n\
         {root}\
         mkdir -p lib/modules/{release}; mount --bind /host{modules} lib/modules/{release}\n\
         chroot /mnt/root {enter}\n\
         sync\n\
         poweroff -f\n"
    ))
}

/// What runs inside the guest's root before and around the command. The output channel opens only once, so one
/// shell holds it.
fn enter_script(job: &Job) -> String {
    let cmd = sh::quote(&job.dir().join("cmd").to_string_lossy());
    format!(
        "#!/bin/bash\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin\n\
         for m in {LOADED}; do modprobe -q $m; done; modprobe -q null_blk nr_devices=0\n\
         for _ in {{1..100}}; do out=$(ls /dev/vport* 2> /dev/null) && break; sleep 0.1; done\n\
         ip link set lo up\n\
         echo \"enter: output to $out\"\n\
         {cmd} < /dev/null > $out 2>&1\n\
         echo \"enter: done\"\n"
    )
}
