//! The cases that are measured unless the command line says otherwise.

use crate::calibrate::Work;
use crate::compare::Case;
use crate::load::Kind;
use crate::members::Backing;

/// Least bytes of a request that writes whole stripes.
const STRIPES_LEAST: u32 = 1 << 20;

/// All cases, for that chunk in sectors. Members that keep what is written are those of `backing`, in memory by default.
pub fn cases(chunk: u32, backing: Option<&Backing>) -> Vec<Case> {
    let keeps = match backing {
        Some(Backing::Directory(path)) => Backing::Directory(path.clone()),
        _ => Backing::Memory,
    };
    let mut all = Vec::new();
    for (data, backing) in [
        (4, Backing::Null),
        (6, Backing::Null),
        (22, Backing::Null),
        (6, keeps.clone()),
    ] {
        // Copies to members in memory drown the difference.
        let temperatures: &[bool] = match backing {
            Backing::Null => &[false, true],
            _ => &[false],
        };
        for &hot in temperatures {
            all.push(Case {
                name: format!(
                    "full/{data}+2/{}/{}",
                    if hot { "hot" } else { "cold" },
                    backing.name()
                ),
                data,
                chunk,
                backing: backing.clone(),
                kind: Kind::Stripes {
                    least: STRIPES_LEAST / 512,
                },
                sweep: false,
                hot: Some(hot),
                missing: Vec::new(),
                work: Work::Encode,
            });
        }
    }
    let base = Case {
        name: String::new(),
        data: 6,
        chunk,
        backing: Backing::Null,
        kind: Kind::Nothing,
        sweep: false,
        hot: None,
        missing: Vec::new(),
        work: Work::Check,
    };
    for sectors in [8, 64] {
        all.push(Case {
            name: format!("small/6+2/{}k/null", sectors / 2),
            kind: Kind::Small { sectors },
            hot: Some(true),
            work: Work::Update { sectors },
            ..base.clone()
        });
    }
    for (lost, backing) in [(1, Backing::Null), (2, Backing::Null), (2, keeps.clone())] {
        all.push(Case {
            name: format!("lost/6+2/{lost}/{}", backing.name()),
            backing,
            kind: Kind::Lost,
            missing: (0..lost).collect(),
            work: Work::Recover {
                lost: usize::from(lost),
            },
            ..base.clone()
        });
    }
    for backing in [Backing::Null, keeps] {
        all.push(Case {
            name: format!("sweep/6+2/{}", backing.name()),
            sweep: true,
            backing,
            ..base.clone()
        });
    }
    all
}
