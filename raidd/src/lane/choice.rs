//! Which GPUs may be used, as the `gpu:` key of the configuration says: `auto`, `off`, a number, a name, or a list of these.
//! Pure; `config` reads it.

use std::fmt;

/// One device, as an operator names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuName {
    /// By the driver's number.
    Index(u32),
    /// By the driver's name for it, `GPU-` and a uuid.
    Uuid(String),
}

/// Which devices may compute parity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GpuChoice {
    /// All that can, if there are any.
    #[default]
    Auto,
    /// None.
    Off,
    /// These.
    These(Vec<GpuName>),
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuName::Index(n) => write!(f, "{n}"),
            GpuName::Uuid(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for GpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuChoice::Auto => f.write_str("auto"),
            GpuChoice::Off => f.write_str("off"),
            GpuChoice::These(names) => {
                for (i, name) in names.iter().enumerate() {
                    write!(f, "{}{name}", if i > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_as_written() {
        let name = GpuName::Uuid("GPU-8f6d0a12-aa".into());
        let both = GpuChoice::These(vec![GpuName::Index(0), name]);
        assert_eq!(both.to_string(), "0, GPU-8f6d0a12-aa");
        assert_eq!(GpuChoice::Auto.to_string(), "auto");
        assert_eq!(GpuChoice::Off.to_string(), "off");
    }
}
