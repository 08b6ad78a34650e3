#pragma once

// Header-only, or compiled once: the same headers serve both (docs/adr/0015).
//
// A header NAME.hpp whose bodies need not be seen by every program ends with
//
//     #ifndef TRIREME_COMPILED
//     #include "trireme/ROOM/NAME.ipp"
//     #endif
//
// and NAME.ipp has them. A function that is no template is marked TRIREME_BODY there. Where TRIREME_COMPILED is defined
// (by the target trireme::compiled, or by a build that compiles src/trireme.cpp itself) the header is only
// declarations, and what is made of src/ has the bodies. Its templates are instantiated there for all element types
// that they take, so that nothing is missing in a program with numbers of its own.
#ifdef TRIREME_COMPILED
#define TRIREME_BODY
#else
#define TRIREME_BODY inline
#endif
