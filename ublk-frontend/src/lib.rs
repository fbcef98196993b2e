//! ublk-frontend
