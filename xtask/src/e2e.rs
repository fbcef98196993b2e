//! End-to-end scripts (`tests/e2e/NN-name.sh`), each in a fresh guest. The head of a script says what it needs:
//! `# bed: any|both|uml|qemu` (any: the bed at hand; both: each bed there is), `# time: SECONDS` (in UML on
//! an idle machine; the limit is three times as much, ten times under software emulation), `# mem: 6G`, `# append: KERNEL_ARGUMENT`, `# drives: N`, `# drive_mib: N`,
//! `# drive_props: ...`.

use crate::count::Count;
use crate::vm::{self, Bed, VmOptions};
use crate::{build, paths, sh};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args, Debug)]
pub struct E2eCommand {
    /// Run all of them in this bed only.
    #[arg(long, value_enum)]
    bed: Option<Bed>,
    /// Version of the packaged kernel in QEMU, or path of the kernel in UML.
    #[arg(long)]
    kernel: Option<String>,
    /// Test release binaries.
    #[arg(long)]
    release: bool,
    /// Scripts (default: all of tests/e2e).
    scripts: Vec<PathBuf>,
}

impl E2eCommand {
    pub fn run(self) -> Result<i32> {
        let profile = if self.release {
            build::Profile::Release
        } else {
            build::Profile::Dev
        };
        let binaries = build::binaries(profile)?;
        let scripts = if self.scripts.is_empty() {
            all()?
        } else {
            self.scripts
        };
        let count = run(&scripts, self.bed, self.kernel.as_deref(), &binaries)?;
        println!("{count}");
        Ok(i32::from(count.failed > 0))
    }
}

/// All scripts of the repository, in order.
pub fn all() -> Result<Vec<PathBuf>> {
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(paths::repo().join("tests/e2e"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".sh") && name.starts_with(|c: char| c.is_ascii_digit())
        })
        .collect();
    scripts.sort();
    Ok(scripts)
}

/// Beds that this machine has or can get without a build of a kernel.
pub fn beds() -> Vec<Bed> {
    let mut beds = Vec::new();
    if paths::uml_kernel().is_some() {
        beds.push(Bed::Uml);
    }
    if sh::which("qemu-system-x86_64").is_some()
        || (sh::is_root() && sh::which("apt-get").is_some())
    {
        beds.push(Bed::Qemu);
    }
    beds
}

/// Runs scripts in their beds, or all in `only`.
pub fn run(
    scripts: &[PathBuf],
    only: Option<Bed>,
    kernel: Option<&str>,
    binaries: &Path,
) -> Result<Count> {
    let beds = beds();
    let mut total = Count::default();
    for script in scripts {
        let head = Head::read(script)?;
        let chosen: Vec<Bed> = match only {
            Some(bed) => head.beds(&[bed]),
            None => head.beds(&beds),
        };
        let name = script
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if chosen.is_empty() {
            println!("skip {name} # needs the {} bed", head.bed);
            total += Count::skip();
        }
        for bed in chosen {
            total += one(script, &name, &head, bed, kernel, binaries)?;
        }
    }
    Ok(total)
}

fn one(
    script: &Path,
    name: &str,
    head: &Head,
    bed: Bed,
    kernel: Option<&str>,
    binaries: &Path,
) -> Result<Count> {
    println!("== {name} in {}", bed.name());
    let start = Instant::now();
    let mut options = VmOptions {
        bed: Some(bed),
        kernel: kernel.map(str::to_owned),
        memory: head.memory.clone(),
        seconds: Some(head.seconds * if bed == Bed::Qemu { 10 } else { 3 }),
        drives: head.drives,
        drive_mib: head.drive_mib,
        drive_props: head.drive_props.clone(),
        ..VmOptions::default()
    };
    if bed == Bed::Uml {
        options.append.clone_from(&head.append);
    }
    let runner = paths::repo().join("tests/e2e/run");
    let script = script.canonicalize()?;
    let command = [
        "env".to_owned(),
        format!("RAIDD_BIN_DIR={}", binaries.display()),
        runner.display().to_string(),
        script.display().to_string(),
    ];
    let mut count = Count::default();
    let code = vm::run_lines(&options, &command, &mut |line| {
        println!("{line}");
        if let Some(one) = Count::of_script_line(line) {
            count += one;
        }
    })?;
    // The runner's own verdict: a guest that died or a limit that was reached must not pass for want of a line.
    if code != 0 && count.failed == 0 {
        let why = match code {
            vm::TIMED_OUT => "ran past its time limit".to_owned(),
            vm::GUEST_DIED => "the guest died".to_owned(),
            code => format!("exit status {code}"),
        };
        println!("not ok {name}/guest # {why}");
        count += Count::fail();
    }
    println!(
        "== {name} in {}: {count} ({:.1} s)",
        bed.name(),
        start.elapsed().as_secs_f64()
    );
    Ok(count)
}

/// What the head of a script asks for.
#[derive(Debug)]
struct Head {
    bed: String,
    seconds: u64,
    memory: Option<String>,
    append: Vec<String>,
    drives: u32,
    drive_mib: u64,
    drive_props: String,
}

impl Head {
    fn read(script: &Path) -> Result<Head> {
        let text = std::fs::read_to_string(script)
            .with_context(|| format!("no script {}", script.display()))?;
        Head::parse(&text).with_context(|| format!("in the head of {}", script.display()))
    }

    fn parse(text: &str) -> Result<Head> {
        let mut head = Head {
            bed: "any".to_owned(),
            seconds: 120,
            memory: None,
            append: Vec::new(),
            drives: 8,
            drive_mib: 512,
            drive_props: String::new(),
        };
        for line in text.lines().take_while(|line| line.starts_with('#')) {
            let Some((key, value)) = line.trim_start_matches(['#', ' ']).split_once(": ") else {
                continue;
            };
            let value = value.trim();
            match key {
                "bed" if ["any", "both", "uml", "qemu"].contains(&value) => {
                    head.bed = value.to_owned()
                }
                "bed" => bail!("unknown bed {value}"),
                "time" => head.seconds = value.parse().context("time: not a number of seconds")?,
                "mem" => head.memory = Some(value.to_owned()),
                "append" => head.append.push(value.to_owned()),
                "drives" => head.drives = value.parse().context("drives: not a number")?,
                "drive_mib" => head.drive_mib = value.parse().context("drive_mib: not a number")?,
                "drive_props" => head.drive_props = value.to_owned(),
                _ => {}
            }
        }
        Ok(head)
    }

    /// Which of the beds at hand to run in.
    fn beds(&self, at_hand: &[Bed]) -> Vec<Bed> {
        match self.bed.as_str() {
            "any" => at_hand.iter().copied().take(1).collect(),
            "both" => at_hand.to_vec(),
            name => at_hand
                .iter()
                .copied()
                .filter(|bed| bed.name() == name)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Head;
    use crate::vm::Bed;

    #[test]
    fn a_head_chooses_its_beds() {
        let text = "#!/usr/bin/env bash\n# Says what: it tests.\n# bed: uml\n# time: 30\n# mem: 9G\ncode # bed: qemu\n";
        let head = Head::parse(text).expect("a good head");
        assert_eq!((head.seconds, head.memory.as_deref()), (30, Some("9G")));
        assert_eq!(head.beds(&[Bed::Uml, Bed::Qemu]), [Bed::Uml]);
        assert_eq!(head.beds(&[Bed::Qemu]), []);
        let any = Head::parse("# bed: any\n").expect("a good head");
        assert_eq!(any.beds(&[Bed::Qemu]), [Bed::Qemu]);
        assert!(Head::parse("# bed: moon\n").is_err());
    }
}
