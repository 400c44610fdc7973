//! Ranges of addresses that may overlap, and the lookup of those that hold an address.

/// Limit for the ranges that are looked at for one address.
const MOST_LOOKS: usize = 100_000;

/// Values and their ranges, sorted by start; those of one start in the order of adding.
pub(super) struct Intervals<T> {
    /// (start, end, value)
    list: Vec<(u32, u32, T)>,
    /// The highest end of each and all before it.
    highest: Vec<u32>,
}

impl<T> Intervals<T> {
    pub(super) fn new(mut list: Vec<(u32, u32, T)>) -> Intervals<T> {
        list.sort_by_key(|(start, ..)| *start);
        let highest = list.iter().scan(0, |highest: &mut u32, &(_, end, _)| {
            *highest = end.max(*highest);
            Some(*highest)
        });
        Intervals { highest: highest.collect(), list }
    }

    /// Start and value of each range that holds `rva`; `None` if too many may hold it.
    pub(super) fn at(&self, rva: u32) -> Option<Vec<(u32, &T)>> {
        let mut found = Vec::new();
        let before = self.list.partition_point(|(start, ..)| *start <= rva);
        for n in (0..before).rev() {
            if self.highest[n] <= rva {
                break;
            }
            if before - n > MOST_LOOKS {
                return None;
            }
            let (start, end, value) = &self.list[n];
            if rva < *end {
                found.push((*start, value));
            }
        }
        found.reverse();
        Some(found)
    }

    /// The values whose ranges start there.
    pub(super) fn starting_at(&self, rva: u32) -> impl Iterator<Item = &T> {
        let from = self.list.partition_point(|(start, ..)| *start < rva);
        self.list[from..].iter().take_while(move |(start, ..)| *start == rva).map(|(.., value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_that_holds_an_address_is_found_in_the_order_of_adding() {
        let list = Intervals::new(vec![(10, 20, 'a'), (0, 100, 'b'), (10, 12, 'c'), (30, 40, 'd')]);
        assert_eq!(list.at(11), Some(vec![(0, &'b'), (10, &'a'), (10, &'c')]));
        assert_eq!(list.at(12), Some(vec![(0, &'b'), (10, &'a')]));
        assert_eq!(list.at(100), Some(vec![]));
        assert_eq!(list.starting_at(10).collect::<Vec<_>>(), [&'a', &'c']);
    }
}
