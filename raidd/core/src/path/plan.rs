//! The one place that chooses how a partial write is carried out. Pure: masks and availability in, a strategy out.
//!
//! A mask has one bit per sector of a band (bit 0 = first). A band write touches the rows of the hull of all masks; parity
//! is made new for exactly these rows.

use super::types::BAND_SECTORS;

/// How a band write gets its parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strategy {
    /// No parity member is left: write the data, read nothing.
    Plain,
    /// Read what is not being written, encode (MD: reconstruct-write). With nothing to read: a full stripe.
    Encode,
    /// Read old data and old parity, adjust (MD: read-modify-write).
    Update,
    /// Read everything that is left, recover what is lost, then encode.
    Recover,
    /// More is lost than the parity can give back.
    Impossible,
}

/// The choice and the rows it concerns: sectors `lo..hi` of the band.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// How.
    pub strategy: Strategy,
    /// First row touched.
    pub lo: u32,
    /// First row after.
    pub hi: u32,
}

/// Bits `lo..hi`.
#[inline]
pub fn span(lo: u32, hi: u32) -> u128 {
    debug_assert!(lo < hi && hi <= BAND_SECTORS);
    (u128::MAX >> (128 - (hi - lo))) << lo
}

/// First set bit and one past the last.
#[inline]
pub fn hull(mask: u128) -> Option<(u32, u32)> {
    (mask != 0).then(|| (mask.trailing_zeros(), 128 - mask.leading_zeros()))
}

/// The runs of set bits, ascending, as `(first, end)`.
pub fn runs(mut mask: u128) -> impl Iterator<Item = (u32, u32)> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lo = mask.trailing_zeros();
        let len = (!(mask >> lo)).trailing_zeros();
        mask &= !span(lo, lo + len);
        Some((lo, lo + len))
    })
}

/// Chooses by the number of member reads, as MD does; a tie goes to [`Strategy::Encode`], which needs no multiplication.
///
/// `masks[k]`: sectors written in data chunk k. `data_ok(k)`: its member can be read. `p_ok`, `q_ok`: likewise (`false` when
/// the level has no such chunk). `made`: a parity member is there that cannot be read, but has to get what belongs there (it is
/// being filled): then parity is made new, and `p_ok` or `q_ok` is `false` for it. `trusted`: parity is in sync here; if not, old parity must never be adjusted.
pub fn choose(
    masks: &[u128],
    data_ok: impl Fn(u16) -> bool,
    p_ok: bool,
    q_ok: bool,
    made: bool,
    trusted: bool,
) -> Choice {
    let all = masks.iter().fold(0, |a, m| a | m);
    let (lo, hi) = hull(all).expect("a write touches something");
    let choice = |strategy| Choice { strategy, lo, hi };
    if !p_ok && !q_ok && !made {
        return choice(Strategy::Plain);
    }
    let rows = span(lo, hi);
    let (mut encode, mut encode_ok) = (0u32, true);
    let (mut update, mut update_ok) = (u32::from(p_ok) + u32::from(q_ok), trusted && !made);
    let (mut touched, mut lost) = (0u32, 0u32);
    for (k, mask) in masks.iter().enumerate() {
        let ok = data_ok(k as u16);
        lost += u32::from(!ok);
        if *mask != 0 {
            touched += 1;
            update += 1;
            update_ok &= ok;
        }
        if rows & !mask != 0 {
            encode += 1;
            encode_ok &= ok;
        }
    }
    // Old data is read into the buffers of untouched chunks, so there must be enough of them.
    update_ok &= touched * 2 <= masks.len() as u32;
    let parity = u32::from(p_ok) + u32::from(q_ok);
    let strategy = match (encode_ok, update_ok) {
        (true, true) if update < encode => Strategy::Update,
        (true, _) => Strategy::Encode,
        (false, true) => Strategy::Update,
        (false, false) if lost <= parity => Strategy::Recover,
        (false, false) => Strategy::Impossible,
    };
    choice(strategy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture of one band: one string per data chunk, one letter per 32 sectors.
    /// `w` written, `.` not; a leading `!` means that the member is not readable.
    fn masks(picture: &[&str]) -> (Vec<u128>, Vec<bool>) {
        picture
            .iter()
            .map(|p| {
                let rows = p.trim_start_matches('!');
                let mask = rows
                    .bytes()
                    .enumerate()
                    .filter(|(_, c)| *c == b'w')
                    .fold(0u128, |m, (i, _)| {
                        m | span(i as u32 * 32, i as u32 * 32 + 32)
                    });
                (mask, !p.starts_with('!'))
            })
            .unzip()
    }

    fn strategy(picture: &[&str], parity: (bool, bool), trusted: bool) -> Strategy {
        filled(picture, parity, false, trusted)
    }

    fn filled(picture: &[&str], parity: (bool, bool), made: bool, trusted: bool) -> Strategy {
        let (m, ok) = masks(picture);
        choose(
            &m,
            |k| ok[usize::from(k)],
            parity.0,
            parity.1,
            made,
            trusted,
        )
        .strategy
    }

    const PQ: (bool, bool) = (true, true);
    const P: (bool, bool) = (true, false);

    #[test]
    fn fewer_reads_win_and_a_tie_goes_to_encode() {
        // 4+1, one chunk: update reads 2, encode 3.
        assert_eq!(
            strategy(&["w...", "....", "....", "...."], P, true),
            Strategy::Update
        );
        // 3+1, one chunk: 2 against 2.
        assert_eq!(
            strategy(&["w...", "....", "...."], P, true),
            Strategy::Encode
        );
        // 4+2, one chunk: 3 against 3.
        assert_eq!(
            strategy(&["w...", "....", "....", "...."], PQ, true),
            Strategy::Encode
        );
        // 6+2: one chunk 3 against 5, three chunks 5 against 3.
        let one = ["w...", "....", "....", "....", "....", "...."];
        assert_eq!(strategy(&one, PQ, true), Strategy::Update);
        let three = ["ww..", "ww..", "ww..", "....", "....", "...."];
        assert_eq!(strategy(&three, PQ, true), Strategy::Encode);
        // Full rows read nothing.
        assert_eq!(
            strategy(&["ww..", "ww..", "ww.."], PQ, true),
            Strategy::Encode
        );
    }

    #[test]
    fn untrusted_parity_is_never_adjusted() {
        let one = ["w...", "....", "....", "....", "....", "...."];
        assert_eq!(strategy(&one, PQ, false), Strategy::Encode);
        assert_eq!(
            strategy(&["w...", "!...", "....", "....", "....", "...."], PQ, false),
            Strategy::Recover
        );
    }

    #[test]
    fn a_lost_member_makes_a_strategy_impossible() {
        // Lost and untouched: encode cannot read it, update need not.
        assert_eq!(
            strategy(&["w...", "!...", "....", "...."], P, true),
            Strategy::Update
        );
        // Lost and written in all touched rows: encode need not read it.
        assert_eq!(
            strategy(&["!w...", "....", "....", "...."], P, true),
            Strategy::Encode
        );
        // Lost and written in part of the touched rows: everything has to be read.
        assert_eq!(
            strategy(&["!w...", ".w..", "....", "...."], P, true),
            Strategy::Recover
        );
        // Too many touched chunks for update, and an untouched one lost.
        assert_eq!(
            strategy(&["w...", "w...", "w...", "!..."], P, true),
            Strategy::Recover
        );
        assert_eq!(
            strategy(&["!w...", "!.w..", "....", "...."], P, true),
            Strategy::Impossible
        );
        assert_eq!(
            strategy(&["!w...", "!.w..", "....", "...."], PQ, true),
            Strategy::Recover
        );
        // Without parity members nothing has to be read.
        assert_eq!(
            strategy(&["w...", "....", "...."], (false, false), true),
            Strategy::Plain
        );
    }

    /// A parity member that is being filled is written, and its old content is of no use.
    #[test]
    fn parity_that_is_being_filled_is_made_new() {
        let one = ["w...", "....", "....", "....", "....", "...."];
        assert_eq!(filled(&one, (false, true), true, true), Strategy::Encode);
        assert_eq!(filled(&one, (false, true), false, true), Strategy::Update);
        let alone = ["w...", "....", "...."];
        assert_eq!(filled(&alone, (false, false), true, true), Strategy::Encode);
        let lost = ["w...", "!...", "....", "....", "....", "...."];
        assert_eq!(filled(&lost, (true, false), true, true), Strategy::Recover);
    }

    #[test]
    fn runs_and_hull_of_a_mask() {
        let m = span(0, 1) | span(5, 9) | span(127, 128);
        assert_eq!(runs(m).collect::<Vec<_>>(), [(0, 1), (5, 9), (127, 128)]);
        assert_eq!(hull(m), Some((0, 128)));
        assert_eq!(hull(0), None);
        assert_eq!(runs(u128::MAX).collect::<Vec<_>>(), [(0, 128)]);
    }
}
