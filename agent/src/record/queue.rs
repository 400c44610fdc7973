//! A bounded queue between threads of the recorder and threads of the target.
//!
//! Dmitry Vyukov's bounded queue: each cell carries a sequence number that says whose turn it is.
//! Neither end ever waits: push refuses on a full queue, and pop returns nothing on an empty one. A
//! producer that is suspended half-way through a push only hides later values until it runs again.
//! The loader callback, DllMain and `stk_capture` need this: they run on the target's threads, and
//! the sampler may suspend them at any instruction.

use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering};

struct Cell<T> {
    /// `index` when free for the push number `index`, `index + 1` when it holds that push's value.
    turn: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// A bounded queue for any number of producers and consumers. It allocates only in [`Queue::new`].
pub(crate) struct Queue<T> {
    cells: Box<[Cell<T>]>,
    mask: usize,
    head: AtomicUsize,
    tail: AtomicUsize,
}

// SAFETY: a cell's value is only touched by the one thread that won the cell's turn through `tail`
// or `head`, and the turn's Release store and Acquire load order those accesses; so values move
// between threads, hence `T: Send`.
unsafe impl<T: Send> Sync for Queue<T> {}
// SAFETY: as above; the queue owns its values.
unsafe impl<T: Send> Send for Queue<T> {}

impl<T> Queue<T> {
    /// A queue for at least `capacity` values (rounded up to a power of two).
    pub(crate) fn new(capacity: usize) -> Queue<T> {
        let size = capacity.max(2).next_power_of_two();
        let cells = (0..size)
            .map(|index| Cell {
                turn: AtomicUsize::new(index),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            })
            .collect();
        Queue { cells, mask: size - 1, head: AtomicUsize::new(0), tail: AtomicUsize::new(0) }
    }

    /// Appends `value`, or gives it back when the queue is full.
    pub(crate) fn push(&self, value: T) -> Result<(), T> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let Some(cell) = self.cells.get(tail & self.mask) else { return Err(value) };
            let turn = cell.turn.load(Ordering::Acquire);
            match turn.wrapping_sub(tail) as isize {
                0 => match self.tail.compare_exchange_weak(
                    tail,
                    tail.wrapping_add(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        // SAFETY: this thread won push number `tail`, for which the cell is free.
                        unsafe { (*cell.value.get()).write(value) };
                        cell.turn.store(tail.wrapping_add(1), Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => tail = now,
                },
                behind if behind < 0 => return Err(value),
                _ => tail = self.tail.load(Ordering::Relaxed),
            }
        }
    }

    /// Number of values, about: both ends may move meanwhile.
    pub(crate) fn len(&self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        let len = self.tail.load(Ordering::Relaxed).wrapping_sub(head) as isize;
        len.max(0) as usize
    }

    /// Takes the oldest value; `None` if no complete value is there.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let cell = self.cells.get(head & self.mask)?;
            let turn = cell.turn.load(Ordering::Acquire);
            match turn.wrapping_sub(head.wrapping_add(1)) as isize {
                0 => match self.head.compare_exchange_weak(
                    head,
                    head.wrapping_add(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        // SAFETY: this thread won pop number `head`, and the cell's turn says that
                        // it holds a value.
                        let value = unsafe { (*cell.value.get()).assume_init_read() };
                        cell.turn.store(head.wrapping_add(self.mask).wrapping_add(1), Ordering::Release);
                        return Some(value);
                    }
                    Err(now) => head = now,
                },
                behind if behind < 0 => return None,
                _ => head = self.head.load(Ordering::Relaxed),
            }
        }
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;
    use alloc::vec::Vec;

    #[test]
    fn a_full_queue_gives_the_value_back_and_keeps_order() {
        let queue = Queue::new(4);
        for value in 0..4 {
            assert_eq!(queue.push(value), Ok(()));
        }
        assert_eq!((queue.push(4), queue.len()), (Err(4), 4));
        assert_eq!(
            (0..5).map(|_| queue.pop()).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2), Some(3), None]
        );
        assert_eq!((queue.push(5), queue.len()), (Ok(()), 1));
        assert_eq!((queue.pop(), queue.len()), (Some(5), 0));
    }

    #[test]
    fn remaining_values_are_dropped_with_the_queue() {
        let value = Arc::new(());
        let queue = Queue::new(2);
        assert!(queue.push(value.clone()).is_ok());
        drop(queue);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn four_producers_lose_nothing_and_each_keeps_its_order() {
        const EACH: u64 = 20_000;
        let queue = Arc::new(Queue::new(64));
        let producers: Vec<_> = (0..4u64)
            .map(|producer| {
                let queue = queue.clone();
                std::thread::spawn(move || {
                    for number in 0..EACH {
                        let mut value = producer << 32 | number;
                        while let Err(back) = queue.push(value) {
                            value = back;
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut next = [0u64; 4];
        let mut seen = 0;
        while seen < 4 * EACH {
            let Some(value) = queue.pop() else {
                std::thread::yield_now();
                continue;
            };
            let producer = (value >> 32) as usize;
            assert_eq!(value & 0xffff_ffff, next[producer]);
            next[producer] += 1;
            seen += 1;
        }
        for producer in producers {
            producer.join().unwrap();
        }
        assert_eq!(queue.pop(), None);
    }
}
