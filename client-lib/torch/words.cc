#include "client-lib/torch/words.h"

#include <regex>

namespace tensorlane::torch_backend {
namespace {

// The first of these whose pattern is found says it. "$1" is what the pattern's first group has found.
struct Rule {
  std::regex said;
  std::string text;
};

}  // namespace

std::string in_words_of_torch(std::string said, const Description& what, const GroupWords& group) {
  const std::string of = "process group '" + group.name + "' of " + group.ranks;
  const std::string its = std::regex_replace(of, std::regex(R"(\$)"), "$$$$");  // in what replaces
  const std::string before = what.is_message() ? "let every rank send and receive all messages before any leaves"
                                               : "let every rank make the same calls before any leaves";
  const std::string left = its + ": " + before + "; where its program has failed, its own output says why";
  const Rule rules[] = {
      {std::regex(R"(^(rank \d+ on host \S+ has) left the job: .*)"), "$1 left " + left},
      {std::regex(R"(^(all other ranks have) left the job: .*)"), "$1 left " + left},
      {std::regex(R"(^tensor '[^']*' differs: (rank \d+) registers (.*), (rank \d+) (.*): group '.*)"),
       "ranks have called it in different ways: $2 on $1, $4 on $3: " + its +
           ": let all ranks make the same calls in the same order"},
      {std::regex(R"(^(.* ha(?:s|ve)) not (?:registered after|submitted for) ([0-9.]+ s): .*)"),
       "$1 not called it for $2: " + its + ": find out what is done there instead, or raise late_error of the daemons"},
  };
  for (const Rule& rule : rules) {
    if (std::regex_search(said, rule.said)) return std::regex_replace(said, rule.said, rule.text);
  }
  const std::string job = "job '" + group.job + "'";
  for (std::size_t at = 0; !group.job.empty() && (at = said.find(job, at)) != std::string::npos; at += of.size())
    said.replace(at, job.size(), of);
  return said;
}

}  // namespace tensorlane::torch_backend
