//! Small images whose symbols expand to far more than their size: like `symbols_bombs`, for DWARF,
//! COFF and exported names.

use stk_symbols::index::{Origin, SymbolIndex};
use stk_symbols::{ImageFile, image_index};
use stk_tests::symbol_bombs::image::{self as bombs, TEXT, TEXT_SIZE};

fn index(file: &[u8]) -> SymbolIndex {
    image_index(file).unwrap().expect("there are symbols")
}

fn name_at(index: &SymbolIndex, rva: u32) -> Option<String> {
    let hit = index.lookup(rva).unwrap()?;
    hit.frames().next().map(|frame| frame.name.to_owned())
}

#[test]
fn many_coff_symbols_at_one_address_take_linear_time() {
    let file = bombs::coff_symbols_at_one_address();
    let index = index(&file);
    assert_eq!((index.header().origin, index.header().damaged_parts), (Origin::Coff, 0));
    assert_eq!(
        index.ranges().map(|range| (range.start, range.end)).collect::<Vec<_>>(),
        [(TEXT, TEXT + 0x100), (TEXT + 0x100, TEXT + TEXT_SIZE)]
    );
}

#[test]
fn coff_names_that_overlap_are_damage() {
    let file = bombs::overlapping_coff_names();
    let index = index(&file);
    assert_ne!(index.header().damaged_parts, 0);
    assert!(index.as_bytes().len() < 16 * file.len());
}

#[test]
fn overlapping_exported_names_take_no_more_memory_than_the_file() {
    let file = bombs::overlapping_exported_names();
    let names: usize = ImageFile::parse(&file).unwrap().exports.iter().map(|(_, name)| name.len()).sum();
    assert!(names != 0 && names <= file.len(), "{names}");
}

#[test]
fn inlined_functions_a_hundred_thousand_deep_take_linear_time() {
    let file = bombs::deep_inlined_functions();
    assert_eq!(name_at(&index(&file), TEXT).as_deref(), Some("f"));
}

#[test]
fn endlessly_nested_functions_are_damage() {
    let file = bombs::nested_functions();
    let index = index(&file);
    assert_ne!(index.header().damaged_parts, 0);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

#[test]
fn references_to_other_units_do_not_scan_all_units() {
    let file = bombs::references_to_other_units();
    let index = index(&file);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("inlined"));
}

#[test]
fn tables_of_abbreviations_that_overlap_are_damage() {
    let file = bombs::overlapping_abbreviations();
    let index = index(&file);
    assert_ne!(index.header().damaged_parts, 0);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

#[test]
fn entries_with_attributes_that_take_no_bytes_are_damage() {
    let file = bombs::attributes_without_bytes();
    let index = index(&file);
    assert_ne!(index.header().damaged_parts, 0);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

#[test]
fn functions_that_share_one_list_of_ranges_expand_only_to_the_limit() {
    let file = bombs::shared_ranges();
    let index = index(&file);
    assert_ne!(index.header().damaged_parts, 0);
    assert!(index.as_bytes().len() < 16 * file.len() + (4 << 20));
}

#[test]
fn units_that_share_one_line_program_expand_only_to_the_limit() {
    let file = bombs::shared_line_program();
    let index = index(&file);
    assert_ne!(index.header().damaged_parts, 0);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

#[test]
fn a_file_table_of_millions_of_files_is_damage() {
    let file = bombs::millions_of_files();
    let index = index(&file);
    assert_eq!(index.header().damaged_parts, 1);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

#[test]
fn a_file_table_that_claims_more_files_than_it_has_is_damage() {
    let file = bombs::claimed_files();
    let index = index(&file);
    assert_eq!(index.header().damaged_parts, 1);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

#[test]
fn files_that_share_one_long_folder_expand_only_to_the_limit() {
    let file = bombs::files_of_one_long_folder();
    let index = index(&file);
    assert_ne!(index.header().damaged_parts, 0);
    assert!(index.as_bytes().len() < 16 * file.len() + (4 << 20));
}

#[test]
fn entries_that_refer_to_themselves_expand_only_to_the_limit() {
    let file = bombs::cyclic_references();
    let index = index(&file);
    assert_ne!(index.header().damaged_parts, 0);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
    assert!(index.as_bytes().len() < 16 * file.len() + (4 << 20));
}

#[test]
fn a_line_program_of_millions_of_rows_expands_only_to_the_limit() {
    let file = bombs::many_rows();
    let index = index(&file);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
    assert!(index.as_bytes().len() < 16 * file.len() + (4 << 20));
}
