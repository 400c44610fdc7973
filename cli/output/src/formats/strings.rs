//! Numbers texts that a format writes once and refers to.

use std::collections::HashMap;

/// Distinct texts. The empty one is number 0.
#[derive(Default)]
pub(super) struct Strings {
    ids: HashMap<String, u64>,
    /// Those from number 1 on.
    pub list: Vec<String>,
}

impl Strings {
    /// The number of a text, new or known.
    pub(super) fn id(&mut self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        self.list.push(text.to_owned());
        let id = self.list.len() as u64;
        self.ids.insert(text.to_owned(), id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_have_one_number_and_the_empty_one_is_0() {
        let mut strings = Strings::default();
        let ids = ["b", "", "a", "b"].map(|text| strings.id(text));
        assert_eq!(ids, [1, 0, 2, 1]);
        assert_eq!(strings.list, ["b", "a"]);
    }
}
