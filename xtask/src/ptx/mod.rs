//! `cargo xtask ptx`: makes `parity-kernels/ptx/NAME.ptx` from each `parity-kernels/kernels/NAME.cu`, and with `--check`
//! compares instead. Needs no GPU and no CUDA toolkit: the compiler is the pinned NVRTC of [`wheel`], a second or two
//! for each source.
//!
//! The PTX says which sources it was made from (a checksum over the .cu file and all headers beside it), so that a
//! forgotten `cargo xtask ptx` is found even where the compiler cannot be had.

mod text;
mod wheel;

use crate::count::Count;
use crate::{paths, sh};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};

/// What the PTX is made for: the oldest GPUs that the kernels run on. Drivers compile it for the card at hand.
const ARCHITECTURE: &str = "compute_70";
/// Real GPUs that `--check` also assembles for, as a driver would; the first is the oldest, the last the newest known
/// to this NVRTC.
const ASSEMBLED_FOR: [&str; 3] = ["sm_70", "sm_80", "sm_90"];
/// PTX ISA of CUDA 12.0: what drivers of the R525 branch still read.
const ISA: &str = ".version 8.0";

#[derive(Args, Debug)]
pub struct PtxCommand {
    /// Write nothing; fail if the PTX in the repository is not what its sources give.
    #[arg(long)]
    check: bool,
    /// Also tell registers and spills of each kernel on real GPUs.
    #[arg(long)]
    verbose: bool,
    /// Folder of the sources.
    #[arg(long, value_name = "DIR", default_value_os_t = paths::repo().join("parity-kernels/kernels"))]
    kernels: PathBuf,
    /// Folder of the PTX.
    #[arg(long, value_name = "DIR", default_value_os_t = paths::repo().join("parity-kernels/ptx"))]
    out: PathBuf,
    /// A name to define for the compiler; for measurements, the PTX in the repository is made without.
    #[arg(long, value_name = "NAME")]
    define: Vec<String>,
}

impl PtxCommand {
    pub fn run(self) -> Result<i32> {
        let job = Job {
            kernels: self.kernels,
            out: self.out,
            verbose: self.verbose,
            define: self.define,
        };
        if !self.check {
            job.make()?;
            return Ok(0);
        }
        let count = job.check()?;
        println!("{count}");
        Ok(i32::from(count.failed > 0))
    }
}

/// The part of `cargo xtask test`.
pub fn check() -> Result<Count> {
    Job {
        kernels: paths::repo().join("parity-kernels/kernels"),
        out: paths::repo().join("parity-kernels/ptx"),
        verbose: false,
        define: Vec::new(),
    }
    .check()
}

struct Job {
    kernels: PathBuf,
    out: PathBuf,
    verbose: bool,
    define: Vec<String>,
}

impl Job {
    /// Writes the PTX of each source, and removes PTX that has none.
    fn make(&self) -> Result<()> {
        let nvrtc = wheel::nvrtc()??;
        let sources = self.sources()?;
        std::fs::create_dir_all(&self.out)?;
        for source in &sources {
            let ptx = self.compile(&nvrtc, source)?;
            let to = self.ptx_of(source);
            if std::fs::read_to_string(&to).ok().as_ref() == Some(&ptx) {
                println!("{} is unchanged", to.display());
            } else {
                std::fs::write(&to, &ptx).with_context(|| to.display().to_string())?;
                println!("{}: {} lines", to.display(), ptx.lines().count());
            }
            self.assemble(&nvrtc, source)?;
        }
        for stray in self.strays(&sources)? {
            std::fs::remove_file(&stray)?;
            println!("{} has no source any more: removed", stray.display());
        }
        Ok(())
    }

    /// Compares what is there with what the sources give. First without the compiler, which not every machine can get.
    fn check(&self) -> Result<Count> {
        let mut count = Count::default();
        let sources = self.sources()?;
        for stray in self.strays(&sources)? {
            println!("not ok ptx # {} has no source", stray.display());
            count += Count::fail();
        }
        for source in &sources {
            let stamp = self.stamp(source)?;
            match std::fs::read_to_string(self.ptx_of(source)) {
                Ok(ptx) if text::stamp(&ptx) == Some(&stamp) => count += Count::pass(),
                Ok(_) => count += self.differs(source, "was made from other sources"),
                Err(e) => count += self.differs(source, &e.to_string()),
            }
        }
        if count.failed > 0 {
            return Ok(count);
        }
        let nvrtc = match wheel::nvrtc()? {
            Ok(nvrtc) => nvrtc,
            Err(error) => {
                println!("skip ptx # not compiled again: {error:#}");
                count += Count::skip();
                return Ok(count);
            }
        };
        for source in &sources {
            let ptx = self.compile(&nvrtc, source)?;
            if std::fs::read_to_string(self.ptx_of(source))? == ptx {
                count += Count::pass();
            } else {
                count += self.differs(source, "is not what its sources give");
            }
            self.assemble(&nvrtc, source)?;
        }
        Ok(count)
    }

    fn differs(&self, source: &Path, why: &str) -> Count {
        let ptx = self.ptx_of(source);
        println!(
            "not ok ptx # {}: {why}; run: cargo xtask ptx",
            ptx.display()
        );
        Count::fail()
    }

    /// All `.cu` files, in order.
    fn sources(&self) -> Result<Vec<PathBuf>> {
        let sources = with_ending(&self.kernels, &["cu"])?;
        if sources.is_empty() {
            bail!("no .cu files in {}", self.kernels.display());
        }
        Ok(sources)
    }

    /// PTX without a source.
    fn strays(&self, sources: &[PathBuf]) -> Result<Vec<PathBuf>> {
        if !self.out.is_dir() {
            return Ok(Vec::new());
        }
        let mut strays = with_ending(&self.out, &["ptx"])?;
        strays.retain(|ptx| !sources.iter().any(|source| self.ptx_of(source) == *ptx));
        Ok(strays)
    }

    fn ptx_of(&self, source: &Path) -> PathBuf {
        let mut name = PathBuf::from(source.file_stem().unwrap_or_default());
        name.set_extension("ptx");
        self.out.join(name)
    }

    /// Checksum over the source and every header beside it, in order of their names.
    fn stamp(&self, source: &Path) -> Result<String> {
        let headers = with_ending(&self.kernels, &["cuh", "h"])?;
        let files = headers.iter().map(PathBuf::as_path).chain([source]);
        // sha256sum over its own list: one checksum that depends on names and contents, not on the folder.
        let mut names = Vec::new();
        for file in files {
            names.push(file.file_name().unwrap_or_default().to_owned());
        }
        let list = sh::output(sh::cmd("sha256sum", &names).current_dir(&self.kernels))?;
        text::digest(&list)
    }

    fn compile(&self, nvrtc: &wheel::Nvrtc, source: &Path) -> Result<String> {
        let raw = nvrtc.run("ptx", source, &self.options(ARCHITECTURE))?;
        if !raw.lines().any(|line| line == ISA) {
            bail!(
                "{}: NVRTC gave another PTX ISA than {ISA}",
                source.display()
            );
        }
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        Ok(text::tidy(
            &raw,
            &name,
            wheel::VERSION,
            &self.stamp(source)?,
        ))
    }

    /// Goes all the way to machine code, where what PTX may say and a GPU cannot do is found.
    fn assemble(&self, nvrtc: &wheel::Nvrtc, source: &Path) -> Result<()> {
        for gpu in ASSEMBLED_FOR {
            let mut options = self.options(gpu);
            options.push("--ptxas-options=-v".to_owned());
            let said = nvrtc.run("assemble", source, &options)?;
            if self.verbose {
                println!("{gpu}:\n{said}");
            }
        }
        Ok(())
    }

    fn options(&self, architecture: &str) -> Vec<String> {
        let mut options = vec![
            format!("--gpu-architecture={architecture}"),
            "--std=c++17".to_owned(),
            format!("--include-path={}", self.kernels.display()),
        ];
        options.extend(self.define.iter().map(|name| format!("-D{name}")));
        options
    }
}

/// Files of `folder` with one of these endings, in order.
fn with_ending(folder: &Path, endings: &[&str]) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|end| endings.iter().any(|wanted| end == *wanted))
        })
        .collect();
    files.sort();
    Ok(files)
}
