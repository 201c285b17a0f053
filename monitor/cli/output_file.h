// Files that a command was asked to write.
#pragma once

#include <string>

#include "common/base/status.h"

namespace tensorlane::cli {

// Whether the file may be written, as far as that can be seen without touching it: asked before long work, whose result
// would be lost. An empty path is no file, and good. Refused is what files::create refuses: symbolic links, and what is
// no regular file or another user's. Errors: kUnavailable, with why not.
Status can_write_output(const std::string& path);
// Writes the text, in place of what is there. An empty path writes nothing. Errors: kUnavailable, with why not.
Status write_output(const std::string& path, const std::string& text);

}  // namespace tensorlane::cli
