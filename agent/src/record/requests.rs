//! The mailbox for requests of hosts ([`stk_schema::requests`]), as the agent uses it in place.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use stk_schema::Ticks;
use stk_schema::requests::{REQUESTS_VERSION, RESULT_ENDED, RequestMailbox, TEXT_BYTES};

/// [`RequestMailbox`] with atomic fields, which both sides change in place.
#[repr(C)]
pub(crate) struct LiveRequests {
    size: AtomicU32,
    version: AtomicU32,
    lock: AtomicU64,
    wake: AtomicU64,
    answer: AtomicU32,
    result: AtomicU32,
    request: AtomicU32,
    kind: AtomicU32,
    time: AtomicU64,
    text_len: AtomicU32,
    reserved: AtomicU32,
    text: [AtomicU8; TEXT_BYTES],
}

const _: () = {
    assert!(size_of::<LiveRequests>() == size_of::<RequestMailbox>());
    assert!(core::mem::offset_of!(LiveRequests, answer) == core::mem::offset_of!(RequestMailbox, answer));
    assert!(core::mem::offset_of!(LiveRequests, time) == core::mem::offset_of!(RequestMailbox, time));
    assert!(core::mem::offset_of!(LiveRequests, text) == core::mem::offset_of!(RequestMailbox, text));
};

/// A copy of a request that is not answered.
#[derive(Clone)]
pub(crate) struct HostRequest {
    number: u32,
    /// `REQUEST_*`.
    pub kind: u32,
    /// When the user asked; zero if the host does not say.
    pub time: Ticks,
    text: [u8; TEXT_BYTES],
    len: usize,
}

impl HostRequest {
    /// Its text as bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.text.get(..self.len).unwrap_or(&[])
    }

    /// Its text up to the first byte that is no UTF-8.
    pub(crate) fn text(&self) -> &str {
        let bytes = self.bytes();
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                bytes.get(..error.valid_up_to()).map_or("", |bytes| core::str::from_utf8(bytes).unwrap_or(""))
            }
        }
    }
}

impl LiveRequests {
    /// All zeros, so that it takes no space in the file. Says that there is no mailbox yet.
    pub(crate) const fn empty() -> LiveRequests {
        LiveRequests {
            size: AtomicU32::new(0),
            version: AtomicU32::new(0),
            lock: AtomicU64::new(0),
            wake: AtomicU64::new(0),
            answer: AtomicU32::new(0),
            result: AtomicU32::new(0),
            request: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            time: AtomicU64::new(0),
            text_len: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            text: [const { AtomicU8::new(0) }; TEXT_BYTES],
        }
    }

    /// Prepares the mailbox for a recording, with the handles of its mutex and its event. A request
    /// that came before was for no recording, or for the last one.
    pub(crate) fn open(&self, lock: u64, wake: u64) {
        self.end();
        self.lock.store(lock, Ordering::Relaxed);
        self.wake.store(wake, Ordering::Relaxed);
        self.version.store(REQUESTS_VERSION, Ordering::Relaxed);
        self.size.store(size_of::<LiveRequests>() as u32, Ordering::Release);
    }

    /// The request that waits for its answer.
    pub(crate) fn next(&self) -> Option<HostRequest> {
        let number = self.request.load(Ordering::Acquire);
        if number == self.answer.load(Ordering::Relaxed) {
            return None;
        }
        let mut text = [0; TEXT_BYTES];
        for (to, from) in text.iter_mut().zip(&self.text) {
            *to = from.load(Ordering::Relaxed);
        }
        Some(HostRequest {
            number,
            kind: self.kind.load(Ordering::Relaxed),
            time: Ticks(self.time.load(Ordering::Relaxed)),
            text,
            len: (self.text_len.load(Ordering::Relaxed) as usize).min(TEXT_BYTES),
        })
    }

    /// Answers a request with a `RESULT_*`.
    pub(crate) fn answer(&self, request: &HostRequest, result: u32) {
        self.result.store(result, Ordering::Relaxed);
        self.answer.store(request.number, Ordering::Release);
    }

    /// Answers what waits: the recording has ended.
    pub(crate) fn end(&self) {
        if let Some(request) = self.next() {
            self.answer(&request, RESULT_ENDED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_schema::requests::{REQUEST_MARK, RESULT_DONE};

    fn ask(mailbox: &LiveRequests, text: &[u8], len: u32) {
        for (to, from) in mailbox.text.iter().zip(text) {
            to.store(*from, Ordering::Relaxed);
        }
        mailbox.kind.store(REQUEST_MARK, Ordering::Relaxed);
        mailbox.time.store(77, Ordering::Relaxed);
        mailbox.text_len.store(len, Ordering::Relaxed);
        mailbox.request.fetch_add(1, Ordering::Release);
    }

    #[test]
    fn a_request_is_found_until_it_is_answered_and_once() {
        let mailbox = LiveRequests::empty();
        mailbox.open(4, 8);
        assert!(mailbox.next().is_none());
        ask(&mailbox, b"frame 7", 7);
        let request = mailbox.next().expect("a request");
        assert_eq!((request.kind, request.time, request.text()), (REQUEST_MARK, Ticks(77), "frame 7"));
        assert!(mailbox.next().is_some(), "it waits for its answer");
        mailbox.answer(&request, RESULT_DONE);
        assert!(mailbox.next().is_none());
        assert_eq!(mailbox.answer.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_text_is_copied_up_to_its_limit_and_to_the_first_byte_that_is_no_text() {
        let mailbox = LiveRequests::empty();
        mailbox.open(4, 8);
        ask(&mailbox, &[b'a'; TEXT_BYTES], u32::MAX);
        assert_eq!(mailbox.next().map(|request| request.text().len()), Some(TEXT_BYTES));
        ask(&mailbox, b"ab\xff\x80c", 5);
        assert_eq!(mailbox.next().map(|request| request.text().to_owned()).as_deref(), Some("ab"));
    }

    #[test]
    fn a_request_to_a_recording_that_ended_is_answered_so_and_not_served_by_the_next() {
        let mailbox = LiveRequests::empty();
        mailbox.open(4, 8);
        ask(&mailbox, b"late", 4);
        mailbox.open(4, 8);
        assert!(mailbox.next().is_none());
        assert_eq!(mailbox.result.load(Ordering::Relaxed), RESULT_ENDED);
    }
}
