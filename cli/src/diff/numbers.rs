//! Distinct values and their numbers.

use std::collections::HashMap;
use std::hash::Hash;

/// Distinct values, each with a number in the order of their appearance.
#[derive(Clone, Debug)]
pub(super) struct Numbers<T> {
    numbers: HashMap<T, u32>,
    values: Vec<T>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Numbers { numbers: HashMap::new(), values: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Numbers<T> {
    pub(super) fn of(&mut self, value: T) -> u32 {
        let next = self.values.len() as u32;
        *self.numbers.entry(value).or_insert_with_key(|value| {
            self.values.push(value.clone());
            next
        })
    }

    pub(super) fn values(&self) -> &[T] {
        &self.values
    }
}
