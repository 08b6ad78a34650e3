#pragma once

// Header-only or compiled once: both use the same headers (docs/adr/0015).
//
// A header NAME.hpp whose bodies need not be seen by every program ends with
//
//     #ifndef TRIREME_COMPILED
//     #include "trireme/ROOM/NAME.ipp"
//     #endif
//
// and NAME.ipp contains them. A non-template function is marked TRIREME_BODY there. If TRIREME_COMPILED is defined
// (by the target trireme::compiled, or by a build that compiles src/trireme.cpp itself) the header has declarations
// only, and what is made of src/ has the bodies. It instantiates the templates for all supported element types, so that
// every precision links.
#ifdef TRIREME_COMPILED
#define TRIREME_BODY
#else
#define TRIREME_BODY inline
#endif
