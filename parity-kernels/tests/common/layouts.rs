//! Which Q exponents the data of a RAID 6 stripe have in the layouts of Linux MD, derived from the place of P and Q alone.

/// A layout family, by the rule that gives the exponents. Data are in array order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Left and right symmetric, and parity first or last: data k has exponent k.
    Symmetric,
    LeftAsymmetric,
    RightAsymmetric,
    DdfZeroRestart,
    DdfNRestart,
    DdfNContinue,
}

pub const ALL: [Layout; 6] = [
    Layout::Symmetric,
    Layout::LeftAsymmetric,
    Layout::RightAsymmetric,
    Layout::DdfZeroRestart,
    Layout::DdfNRestart,
    Layout::DdfNContinue,
];

/// Data in member order; exponents count the data members that one meets walking on from Q.
fn by_walk_after_q(n: usize, p: usize, q: usize) -> Vec<u8> {
    let walk = (1..n).map(|i| (q + i) % n).filter(|m| *m != p && *m != q);
    let walk: Vec<usize> = walk.collect();
    let members = (0..n).filter(|m| *m != p && *m != q);
    members
        .map(|m| walk.iter().position(|w| *w == m).expect("a data member") as u8)
        .collect()
}

/// Data from member `first` on; the exponent is the number of the member itself.
fn by_member(n: usize, p: usize, q: usize, first: usize) -> Vec<u8> {
    let members = (0..n)
        .map(|i| (first + i) % n)
        .filter(|m| *m != p && *m != q);
    members.map(|m| m as u8).collect()
}

/// Exponents of data 0, 1, ... of stripe `stripe` of an array of `n` members, P and Q counted.
pub fn exponents(layout: Layout, n: usize, stripe: usize) -> Vec<u8> {
    let s = stripe % n;
    match layout {
        Layout::Symmetric => (0..n - 2).map(|k| k as u8).collect(),
        Layout::LeftAsymmetric => by_walk_after_q(n, n - 1 - s, (n - s) % n),
        Layout::RightAsymmetric => by_walk_after_q(n, s, (s + 1) % n),
        Layout::DdfZeroRestart => by_member(n, s, (s + 1) % n, 0),
        Layout::DdfNRestart => {
            let turned = (s + 1) % n;
            by_member(n, n - 1 - turned, (n - turned) % n, 0)
        }
        Layout::DdfNContinue => by_member(n, n - 1 - s, (2 * n - 2 - s) % n, n - s),
    }
}
