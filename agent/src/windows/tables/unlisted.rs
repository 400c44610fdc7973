//! Images that the loader's list lacks, or of which it sent no notification. Samples reveal them by
//! showing code in them.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use super::mapped::MappedImages;
use super::{TablesRecorder, loader};
use crate::record::fingerprint::Fingerprint;
use crate::record::image::Image;
use crate::record::unlisted::{Mappings as _, UnlistedImage, is_unreported};
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::ticks;

impl TablesRecorder {
    /// Records the images without a notification that samples have shown, and the ends of those
    /// that were unmapped. The loader's notifications must have been drained before.
    pub(crate) fn look_for_unlisted(&mut self) {
        let (now, per_ms) = (ticks(), self.settings.ticks_per_ms);
        let mapped = MappedImages { api: self.api, peb: self.peb };
        let gone = self.unlisted.gone(now, per_ms, &self.modules, &mapped);
        for base in &gone {
            self.forget_unread(*base);
            self.modules.unloaded(now, *base, &mut self.journal);
        }
        let images = &self.settings.code_seen.images;
        let found = self.unlisted.find(now, per_ms, &self.modules, &mapped, || images.pop());
        // An image that the loader reported meanwhile is one of its own.
        self.changes.take(loader::next);
        let mut recorded = !gone.is_empty();
        for found in found {
            if !self.changes.mention(found.seen.base) && !loader::has_lost() {
                recorded |= self.load_unlisted(found, &mapped);
            }
        }
        if recorded {
            self.journal.flush();
        }
    }

    /// Records an image without a notification, unless it was unmapped meanwhile.
    fn load_unlisted(&mut self, found: UnlistedImage, mapped: &MappedImages) -> bool {
        let UnlistedImage { mut seen, time, flags, .. } = found;
        let print = Fingerprint::read(&self.memory, seen.base).map(Box::new);
        let image = Image::read(&self.memory, seen.base, seen.size);
        seen.path = mapped.path(seen.base);
        // No notification reports its end. If the same image is still mapped, what was read belongs
        // to it.
        let (base, size) = (seen.base, seen.size);
        let still = mapped.image_at(base).is_some_and(|now| (now.base, now.size) == (base, size));
        if !still || mapped.identity(base) != print.as_ref().map(|print| print.pe) {
            return false;
        }
        SIGNALS.tables_pending.fetch_add(1, Ordering::AcqRel);
        let loaded = self.load(time, seen, flags, (image, print), 0);
        if !loaded {
            SIGNALS.tables_pending.fetch_sub(1, Ordering::AcqRel);
        }
        loaded
    }

    /// Whether the data read of a module without a notification since it was found may belong to
    /// another image.
    pub(crate) fn is_replaced(&self, instance: u64) -> bool {
        let mapped = MappedImages { api: self.api, peb: self.peb };
        self.modules.get(instance).is_some_and(|module| {
            is_unreported(module.flags) && mapped.identity(module.seen.base) != module.identity()
        })
    }
}
