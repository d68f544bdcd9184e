#include "support/sealed_json.h"

#include <limits>

#include "support/json_reader.h"
#include "support/printable.h"
#include "support/sha256.h"

namespace onnxopt {
namespace {

constexpr char kBefore[] = "{\"sha256\": \"";
constexpr char kBehind[] = "\",\n";
constexpr std::size_t kDigestAt = sizeof(kBefore) - 1;
constexpr std::size_t kDigits = 64;
constexpr std::size_t kBodyAt = kDigestAt + kDigits + sizeof(kBehind) - 1;

bool IsSealed(const std::string& text) {
  return text.size() > kBodyAt && text.compare(0, kDigestAt, kBefore) == 0 &&
         text.compare(kDigestAt + kDigits, kBodyAt - kDigestAt - kDigits, kBehind) == 0;
}

void CheckDigest(const std::string& text) {
  const std::string expected = text.substr(kDigestAt, kDigits);
  const std::string actual = Sha256(text.data() + kBodyAt, text.size() - kBodyAt);
  if (actual == expected) return;
  throw Error("was changed after it was written: its sha256 is " + actual + " where its first line says " +
              Printable(expected));
}

}  // namespace

nlohmann::json ReadSealedJson(const std::string& text, std::uint64_t schema) {
  const bool sealed = IsSealed(text);
  if (sealed) CheckDigest(text);
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    throw Error(std::string("not valid JSON: ") + Printable(e.what()));
  }
  const JsonReader root(json, "");
  const std::uint64_t stated = root["schema"].Number(0, std::numeric_limits<std::uint32_t>::max());
  if (stated != schema) {
    root["schema"].Fail("is " + std::to_string(stated) + ", and this library reads schema " + std::to_string(schema));
  }
  if (!sealed) throw Error("was changed after it was written: its first line is no sha256 of the others");
  return json;
}

std::string SealedJson(const nlohmann::json& document) {
  return SealedText(document.dump(1).substr(2) + "\n");  // behind the brace and its line
}

std::string SealedText(const std::string& body) { return kBefore + Sha256(body.data(), body.size()) + kBehind + body; }

}  // namespace onnxopt
