//! raidd
