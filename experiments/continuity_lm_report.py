"""x"""


def report(workdir):
  return {}
