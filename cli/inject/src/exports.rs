//! Finds the system's functions in another process, from that process's own images.

use crate::image::Image;

/// Modules that export LoadLibraryW and FreeLibrary, in the order of preference.
const LOADERS: [&str; 2] = ["kernel32.dll", "kernelbase.dll"];

/// Whether [`loader_function`] may need the exports of a module with this name.
pub(crate) fn is_loader(name: &str) -> bool {
    LOADERS.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Address of a function of kernel32, such as LoadLibraryW, in a process with these modules (load
/// address and image) of the architecture `machine` (`IMAGE_FILE_MACHINE_*`); `None` while it has
/// not loaded kernel32.
///
/// kernel32 lies at one address in most processes, not in all: a program linked with
/// /LARGEADDRESSAWARE:NO has it below 2 GB, and if the usual address was in use it lies elsewhere.
pub(crate) fn loader_function<'a>(
    machine: u16,
    function: &str,
    modules: impl Iterator<Item = (u64, &'a Image)> + Clone,
) -> Option<u64> {
    LOADERS.iter().find_map(|&name| {
        let mut named = modules
            .clone()
            .filter(|(_, image)| image.machine == machine && image.name.eq_ignore_ascii_case(name));
        named.find_map(|(base, image)| Some(base + u64::from(image.export(function)?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageIdentity;

    const X64: u16 = 0x8664;
    const X86: u16 = 0x14c;

    fn image(machine: u16, name: &str, exports: &[(&str, u32)]) -> Image {
        Image {
            machine,
            dll: true,
            identity: ImageIdentity { time_date_stamp: 1, size_of_image: 0x1_0000, check_sum: 1 },
            name: name.to_owned(),
            exports: exports.iter().map(|&(name, rva)| (name.to_owned(), rva)).collect(),
            resources: 0..0,
            cet: false,
            guard_cf: false,
        }
    }

    fn found(modules: &[(u64, Image)]) -> Option<u64> {
        loader_function(X64, "LoadLibraryW", modules.iter().map(|(base, image)| (*base, image)))
    }

    #[test]
    fn load_library_is_looked_up_where_this_process_has_kernel32() {
        let modules = [
            (0x40_0000, image(X64, "app.exe", &[("LoadLibraryW", 0x10)])),
            (0x7fff_0000_0000, image(X64, "KERNELBASE.dll", &[("LoadLibraryW", 0x20)])),
            (0x7000_0000, image(X64, "KERNEL32.dll", &[("LoadLibraryA", 0x30), ("LoadLibraryW", 0x40)])),
        ];
        assert_eq!(found(&modules), Some(0x7000_0040));
    }

    #[test]
    fn kernelbase_is_used_if_kernel32_only_forwards() {
        // Forwarders are left out of an image's exports.
        let modules = [
            (0x7000_0000, image(X64, "KERNEL32.dll", &[])),
            (0x7100_0000, image(X64, "kernelbase.dll", &[("LoadLibraryW", 0x20)])),
        ];
        assert_eq!(found(&modules), Some(0x7100_0020));
    }

    #[test]
    fn a_kernel32_of_the_other_architecture_is_skipped() {
        let modules = [
            (0x7000_0000, image(X86, "KERNEL32.dll", &[("LoadLibraryW", 0x40)])),
            (0x7fff_0000_0000, image(X64, "KERNEL32.dll", &[("LoadLibraryW", 0x50)])),
        ];
        assert_eq!(found(&modules), Some(0x7fff_0000_0050));
        assert_eq!(found(&modules[..1]), None);
    }

    #[test]
    fn a_process_that_is_not_initialised_has_none() {
        assert_eq!(found(&[]), None);
    }
}
