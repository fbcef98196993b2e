//! Judges whether mdadm and its udev rule can get hold of raidd's members first.

use super::facts::Md;
use super::{Finding, Status};

pub(super) fn judge(md: &Md) -> Vec<Finding> {
    let check = "mdadm and udev";
    let Some(rule) = &md.rule else {
        return vec![Finding::new(
            Status::None,
            check,
            "no udev rule assembles MD arrays here",
            "",
        )];
    };
    let rule = rule.display();
    let notes: Vec<String> = [&md.note_mdadm, &md.note_udev]
        .into_iter()
        .flatten()
        .map(|p| p.display().to_string())
        .collect();
    let mut findings = vec![if !md.managed {
        Finding::new(
            Status::Warn,
            check,
            format!("{rule} assembles members as they appear, and manage_mdadm_conf is off"),
            "manage_mdadm_conf: true, or keep mdadm off the arrays yourself (docs/mdadm.md)",
        )
    } else if notes.is_empty() {
        Finding::new(
            Status::Warn,
            check,
            format!(
                "{rule} assembles members as they appear, and there is no place for raidd's notes"
            ),
            "make the folder /etc/udev/rules.d or /etc/mdadm",
        )
    } else {
        Finding::ok(
            check,
            format!(
                "{rule} is kept off raidd's arrays by notes in {}",
                notes.join(" and ")
            ),
        )
    }];
    if !md.inactive.is_empty() {
        findings.push(Finding::new(
            Status::Warn,
            "half-assembled MD arrays",
            format!("{} hold members and do not run", md.inactive.join(", ")),
            "raidctl assemble takes them over if they are raidd's; else mdadm --stop",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_must_be_kept_off() {
        let status = |md: &Md| judge(md)[0].status;
        let mut md = Md::default();
        assert_eq!(status(&md), Status::None);
        md.rule = Some("/usr/lib/udev/rules.d/64-md-raid-assembly.rules".into());
        assert_eq!(status(&md), Status::Warn);
        md.managed = true;
        assert_eq!(status(&md), Status::Warn);
        md.note_udev = Some("/etc/udev/rules.d/63-raidd-members.rules".into());
        assert_eq!(status(&md), Status::Ok);
        md.inactive = vec!["md127".into()];
        assert_eq!(judge(&md).len(), 2);
    }
}
