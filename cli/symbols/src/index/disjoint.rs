//! Decides which range an address belongs to where ranges overlap.

use super::layout::CodeSpan;

/// Cuts the ranges into disjoint pieces (start, end, range), sorted by address: at each address the
/// lowest kind wins, then the range that begins last, then the one that was added first.
pub(super) fn disjoint(spans: &[CodeSpan]) -> Vec<(u32, u32, u32)> {
    let mut pieces: Vec<(u32, u32, u32)> = Vec::new();
    let mut order: Vec<u32> = (0..spans.len() as u32).collect();
    order.sort_by_key(|&n| (spans[n as usize].kind, spans[n as usize].start, std::cmp::Reverse(n)));
    let mut rest = order.as_slice();
    while let Some(&first) = rest.first() {
        let kind = spans[first as usize].kind;
        let (tier, others) = rest.split_at(rest.partition_point(|&n| spans[n as usize].kind == kind));
        rest = others;
        let own = nested(spans, tier);
        pieces = if pieces.is_empty() { own } else { fill_gaps(&pieces, &own) };
    }
    pieces
}

/// Pieces of ranges of one kind: a range interrupts an earlier one that it begins in, and the
/// earlier one continues behind it.
fn nested(spans: &[CodeSpan], sorted: &[u32]) -> Vec<(u32, u32, u32)> {
    let mut pieces: Vec<(u32, u32, u32)> = Vec::with_capacity(sorted.len());
    let mut open: Vec<u32> = Vec::new();
    let mut at = 0u32;
    let mut emit = |from: u32, to: u32, span: u32| {
        if from < to {
            pieces.push((from, to, span));
        }
    };
    let mut close_until = |open: &mut Vec<u32>, at: &mut u32, limit: u32| {
        while let Some(&top) = open.last() {
            let end = spans[top as usize].end;
            emit(*at, end.min(limit), top);
            *at = (*at).max(end.min(limit));
            if end > limit {
                break;
            }
            open.pop();
        }
        *at = limit;
    };
    for &n in sorted {
        close_until(&mut open, &mut at, spans[n as usize].start);
        open.push(n);
    }
    close_until(&mut open, &mut at, u32::MAX);
    pieces
}

/// `base` and the parts of `filler` in the gaps of `base`. Both are sorted and disjoint.
fn fill_gaps(base: &[(u32, u32, u32)], filler: &[(u32, u32, u32)]) -> Vec<(u32, u32, u32)> {
    let mut out = Vec::with_capacity(base.len() + filler.len());
    let mut next = 0;
    for &(start, end, span) in filler {
        while base.get(next).is_some_and(|piece| piece.1 <= start) {
            next += 1;
        }
        let mut at = start;
        for piece in base[next..].iter().take_while(|piece| piece.0 < end) {
            if at < piece.0 {
                out.push((at, piece.0, span));
            }
            at = at.max(piece.1);
        }
        if at < end {
            out.push((at, end, span));
        }
    }
    out.extend_from_slice(base);
    out.sort_unstable_by_key(|piece| piece.0);
    out
}
