//! (synthetic)
