//! Where things are: the repository, the bed folder (downloads and kernels, never committed), the
//! build output. Costs nothing; looks at environment variables and the file system only.

use std::path::{Path, PathBuf};

/// Root of the repository this program was built from.
pub fn repo() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Folder for kernels, package downloads and build trees; ignored by git, safe to delete.
pub fn bed() -> PathBuf {
    repo().join(".bed")
}

/// Cargo's build output folder.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir),
        Some(dir) => repo().join(dir),
        None => repo().join("target"),
    }
}

/// The UML kernel, if one is at hand: `$RAIDD_UML_KERNEL`, what `vm build-uml` left, or a cache beside the repository.
pub fn uml_kernel() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("RAIDD_UML_KERNEL") {
        return Some(PathBuf::from(path));
    }
    [
        bed().join("linux.uml"),
        repo().join("../shared/vm/linux.uml"),
    ]
    .into_iter()
    .find(|path| path.is_file())
}

/// Whether `path` lies below the repository.
pub fn in_repo(path: &Path) -> bool {
    path.starts_with(repo())
}
